// SPDX-License-Identifier: Apache-2.0
// Small functions of scores and terms.
#pragma once
#include <type_traits>

#include "common/device.cuh"
#include "common/float32.cuh"
#include "common/mma.cuh"
#include "cuda/attention/unified_max_arguments.h"

namespace flashsparse::unified_max {

// A score, not yet scaled, so that scaled it is softcap * tanh(score * scale / softcap). tanh(x) =
// 1 - 2 / (e^2x + 1) is right at both ends.
__device__ __forceinline__ float capped(float score, const Scaling& scaling) {
  const float e = exp2_approx(score * scaling.cap_factor);
  return (1 - 2 * reciprocal_approx(e + 1)) * scaling.cap;
}

// Two ones of a 16-bit dtype: an mma with them sums up terms alone.
template <class Type>
__device__ constexpr uint32_t ones() {
  return std::is_same_v<Type, Float16> ? 0x3c003c00 : 0x3f803f80;
}

}  // namespace flashsparse::unified_max
