// SPDX-License-Identifier: Apache-2.0
// Combines parts of one softmax. Each has sums of 2^(score - reference) times values, the norm (the
// sum of these terms alone), and the reference.
#pragma once
#include <cfloat>

#include "common/device.cuh"
#include "common/float32.cuh"
#include "common/memory.cuh"
#include "cuda/attention/unified_max_plan.h"

namespace flashsparse::unified_max {

inline constexpr float kNoScore = -FLT_MAX;  // the reference of a part without scores

// A part is a record for each head, in shared memory: the sums, followed by this.
template <int kHeadDim>
inline constexpr uint32_t kAbout = kHeadDim * sizeof(float);  // (reference, norm, recomputed, -)

struct Joined {
  float4 sums;
  float reference, norm, redone;

  __device__ __forceinline__ float4 about() const {
    return make_float4(reference, norm, redone, 0);
  }

  // With the term of a sink in the norm, under a reference that is not below it.
  __device__ __forceinline__ Joined with_sink(float sink) const {
    const float raised = fmaxf(reference, sink), weight = exp2_approx(reference - raised);
    return {make_float4(weight * sums.x, weight * sums.y, weight * sums.z, weight * sums.w), raised,
            weight * norm + exp2_approx(sink - raised), redone};
  }
};

// Combines quad number `quad` of a head's sums over all parts, in their order. Their records of
// that head are `stride` apart. If all parts have one reference, weights are 1.
template <int kHeadDim>
__device__ __forceinline__ Joined join(int parts, uint32_t record, uint32_t stride, int quad) {
  const uint32_t about = record + kAbout<kHeadDim>, four = record + quad * 16;
  Joined joined{make_float4(0, 0, 0, 0), kNoScore, 0, 0};
  FS_UNROLL_BY(8)
  for (int part = 0; part < parts; ++part) {
    joined.reference = fmaxf(joined.reference, load_shared<float>(about + part * stride));
  }
  FS_UNROLL_BY(8)
  for (int part = 0; part < parts; ++part) {
    const float4 known = load_shared<float4>(about + part * stride);
    const float4 sums = load_shared<float4>(four + part * stride);
    const float weight = exp2_approx(known.x - joined.reference);
    joined.norm += weight * known.y;
    joined.redone += known.z;
    joined.sums.x += weight * sums.x;
    joined.sums.y += weight * sums.y;
    joined.sums.z += weight * sums.z;
    joined.sums.w += weight * sums.w;
  }
  return joined;
}

}  // namespace flashsparse::unified_max
