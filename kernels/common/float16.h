// SPDX-License-Identifier: Apache-2.0
// Conversions of 16-bit floats on the CPU, by bit operations, with no compiler extension.
#pragma once
#include <cstdint>
#include <cstring>

namespace flashsparse {

inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_from_bfloat16(uint16_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t bfloat16_from_float(float value) {
  const uint32_t bits = bits_from_float(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float float_from_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  if (exponent == 0x1f) return float_from_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent) return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even; values from 65520 up become infinity.
inline uint16_t float16_from_float(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // subnormal in fp16: let fp32 addition do the rounding
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_from_float(shifted) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign |
                               ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13));
}

}  // namespace flashsparse
