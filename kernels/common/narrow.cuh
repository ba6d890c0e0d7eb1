// SPDX-License-Identifier: Apache-2.0
// From fp32 to codes of 8 bits: what tensor cores take of activations. The inverse is widen.cuh.
#pragma once
#include "common/device.cuh"

#ifndef __CUDACC__
#include <cmath>
#endif

namespace flashsparse {

inline constexpr float kLargestFp8 = 448;  // of e4m3

#ifdef __CUDACC__

// Rounds to e4m3, to nearest, ties to even: a to the lowest byte, d to the highest. What is too
// large becomes the largest, NaN becomes NaN.
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

#else

namespace detail {

inline uint32_t narrow_fp8(float value) {
  if (std::isnan(value)) return 0x7f;
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fmin(std::fabs(value), kLargestFp8);
  const int exponent = magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
  // In units of the last place, of which a normal number has 8 to 15.
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  return sign | (static_cast<uint32_t>(exponent + 6) * 8 + units);
}

}  // namespace detail

inline uint32_t narrow_fp8(float a, float b, float c, float d) {
  return detail::narrow_fp8(a) | detail::narrow_fp8(b) << 8 | detail::narrow_fp8(c) << 16 |
         detail::narrow_fp8(d) << 24;
}

#endif

}  // namespace flashsparse
