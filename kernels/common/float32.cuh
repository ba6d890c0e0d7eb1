// SPDX-License-Identifier: Apache-2.0
// Approximate fp32 functions of one instruction. Subnormal arguments and results are flushed to
// zero unless stated otherwise.
#pragma once
#include "common/device.cuh"

#ifndef __CUDACC__
#include <cfloat>
#include <cmath>
#endif

namespace flashsparse {

#ifdef __CUDACC__

// 2 to the power of x, within 2 units in the last place; 0 for -inf.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, within 1 unit in the last place.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / sqrt(x), within 2 units in the last place: what CUDA's rsqrtf is. Keeps subnormal numbers.
__device__ __forceinline__ float reciprocal_sqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

namespace detail {
inline float flush(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
}  // namespace detail

inline float exp2_approx(float x) { return detail::flush(std::exp2(detail::flush(x))); }
inline float reciprocal_approx(float x) { return detail::flush(1.0f / detail::flush(x)); }
inline float reciprocal_sqrt_approx(float x) { return 1.0f / std::sqrt(x); }

#endif

}  // namespace flashsparse
