// SPDX-License-Identifier: Apache-2.0
// Quantizes fp32 to 8 bits, for tensor cores. The inverse is widen.cuh.
#pragma once
#include "common/device.cuh"

#ifndef __CUDACC__
#include <cmath>
#endif

namespace flashsparse {

inline constexpr float kLargestFp8 = 448;  // of e4m3
inline constexpr float kLargestInt8 = 127;

// Whether the GPU that is compiled for converts to e4m3.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
inline constexpr bool kHasNarrowFp8 = true;
#else
inline constexpr bool kHasNarrowFp8 = false;
#endif

#ifdef __CUDACC__

// Converts to e4m3, rounding to nearest, ties to even: a to the lowest byte, d to the highest. Too
// large magnitudes saturate, NaN stays NaN.
__device__ __forceinline__ uint32_t narrow_fp8(float a, float b, float c, float d) {
  uint32_t word = 0;
#if __CUDA_ARCH__ >= 890
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
#endif
  return word;
}

// Converts to int8, rounding to nearest, ties to even: a to the lowest byte, d to the highest. Too
// large magnitudes saturate, NaN becomes 0.
__device__ __forceinline__ uint32_t narrow_int8(float a, float b, float c, float d) {
  uint32_t word = 0;
  asm("{\n"
      ".reg .b32 a, b, c, d, high;\n"
      "cvt.rni.s32.f32 a, %1;\n"
      "cvt.rni.s32.f32 b, %2;\n"
      "cvt.rni.s32.f32 c, %3;\n"
      "cvt.rni.s32.f32 d, %4;\n"
      "cvt.pack.sat.s8.s32.b32 high, d, c, 0;\n"
      "cvt.pack.sat.s8.s32.b32 %0, b, a, high;\n"
      "}"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
}

#else

namespace detail {

inline uint32_t narrow_fp8(float value) {
  if (std::isnan(value)) return 0x7f;
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fmin(std::fabs(value), kLargestFp8);
  const int exponent = magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
  // In units of the last place: 8 to 15 for normal numbers.
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  return sign | (static_cast<uint32_t>(exponent + 6) * 8 + units);
}

}  // namespace detail

inline uint32_t narrow_fp8(float a, float b, float c, float d) {
  return detail::narrow_fp8(a) | detail::narrow_fp8(b) << 8 | detail::narrow_fp8(c) << 16 |
         detail::narrow_fp8(d) << 24;
}

inline uint32_t narrow_int8(float a, float b, float c, float d) {
  uint32_t word = 0;
  for (const float value : {d, c, b, a}) {
    const float code = std::isnan(value) ? 0 : std::fmin(std::fmax(value, -128.0f), 127.0f);
    word = word << 8 | static_cast<uint8_t>(static_cast<int>(std::nearbyint(code)));
  }
  return word;
}

#endif

}  // namespace flashsparse
