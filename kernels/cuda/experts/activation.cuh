// SPDX-License-Identifier: Apache-2.0
// What becomes of a gate and an up projection.
#pragma once
#include "common/float32.cuh"
#include "cuda/experts/arguments.h"

namespace flashsparse::experts {

__device__ __forceinline__ float activated(const Activation& activation, float gate, float up) {
  constexpr float kLog2E = 1.4426950408889634f;
  const float limit = activation.limit;
  gate = gate > limit ? limit : gate;  // NaN stays, which min() would replace
  up = up > limit ? limit : up < -limit ? -limit : up;
  const float power = exp2_approx(gate * (-kLog2E * activation.alpha));
  return gate * reciprocal_approx(1 + power) * (up + activation.up_offset);
}

}  // namespace flashsparse::experts
