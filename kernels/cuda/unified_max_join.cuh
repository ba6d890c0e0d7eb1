// SPDX-License-Identifier: Apache-2.0
// Adding up parts of one softmax: each is sums of 2^(score - reference) times values, the norm,
// which is the sum of these terms alone, and the reference that they were taken against.
#pragma once
#include <cfloat>

#include "common/device.cuh"
#include "common/float32.cuh"

namespace flashsparse::unified_max {

inline constexpr float kNoScore = -FLT_MAX;  // the reference of a part that has seen none

struct Joined {
  float4 sums;
  float reference, norm, redone;
};

// Four sums of a head over all parts, in their order. about(part): (reference, norm, parts done
// again, -) of the head; four_of(part): the sums. With one reference for all, weights are 1.
template <class About, class FourOf>
__device__ __forceinline__ Joined join(int parts, About about, FourOf four_of) {
  Joined joined{make_float4(0, 0, 0, 0), kNoScore, 0, 0};
  constexpr int kAhead = 8;  // parts whose loads are under way at once: each takes its time
  FS_NO_UNROLL
  for (int part = 0; part < parts; part += kAhead) {
    float4 known[kAhead], four[kAhead];
    FS_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      known[i] = about(min(part + i, parts - 1));
      four[i] = four_of(min(part + i, parts - 1));
    }
    float reference = joined.reference;
    FS_UNROLL
    for (int i = 0; i < kAhead; ++i) reference = fmaxf(reference, known[i].x);
    const float shrink = exp2_approx(joined.reference - reference);
    joined.reference = reference;
    joined.norm *= shrink;
    joined.sums.x *= shrink;
    joined.sums.y *= shrink;
    joined.sums.z *= shrink;
    joined.sums.w *= shrink;
    FS_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (part + i >= parts) break;
      const float weight = exp2_approx(known[i].x - reference);
      joined.norm += weight * known[i].y;
      joined.redone += known[i].z;
      joined.sums.x += weight * four[i].x;
      joined.sums.y += weight * four[i].y;
      joined.sums.z += weight * four[i].z;
      joined.sums.w += weight * four[i].w;
    }
  }
  return joined;
}

}  // namespace flashsparse::unified_max
