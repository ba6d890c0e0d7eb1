// SPDX-License-Identifier: Apache-2.0
// Decodes a unit from a warp's ring to A of wgmma, one panel of 64 columns of x at a time.
//   A                        operand of a panel
//   make(a, weights, panel)  prepares it; panels in order, since the first reads the unit's
//   metadata multiply<tokens>(...)    issues its products with the panel of x at `x`
#pragma once
#include "common/wgmma_registers.cuh"
#include "common/wgmma_sparse.cuh"
#include "cuda/exact_units/decode.cuh"

namespace flashsparse::exact_units {

template <Kind kind>
class WgmmaOperand {  // dense: four steps of 16 columns
 public:
  using A = uint32_t[4][4];

  template <class Weights>
  __device__ __forceinline__ void make(A& a, const Weights& weights, int panel) {
    uint4 words[kPanelVectors];
    FS_UNROLL
    for (int i = 0; i < kPanelVectors; ++i) words[i] = weights.load(panel * kPanelVectors + i);
    FS_UNROLL
    for (int step = 0; step < 4; ++step) decode(words, step, a[step]);
  }

  template <int tokens>
  static __device__ __forceinline__ void multiply(float (&sums)[tokens / 2], const A& a,
                                                  uint64_t x) {
    constexpr uint32_t kStepBytes = 32;  // of x
    FS_UNROLL
    for (int step = 0; step < 4; ++step)
      wgmma_registers<BFloat16, tokens>(sums, a[step], wgmma_moved(x, step * kStepBytes));
  }
};

template <>
class WgmmaOperand<Kind::k24> {  // two steps of 32 columns: half of a panel of the unit
 public:
  struct A {
    uint32_t values[2][4], metadata;
  };

  template <class Weights>
  __device__ __forceinline__ void make(A& a, const Weights& weights, int panel) {
    if (panel == 0) metadata_ = weights.load(metadata(Kind::k24) / kVectorBytes);
    a.metadata = panel == 0   ? metadata_.x
                 : panel == 1 ? metadata_.y
                 : panel == 2 ? metadata_.z
                              : metadata_.w;
    uint4 words[kPanelVectors];  // of which two have the steps
    const int half = panel % 2;
    FS_UNROLL
    for (int i = half; i < half + 2; ++i) words[i] = weights.load(panel / 2 * kPanelVectors + i);
    FS_UNROLL
    for (int step = 0; step < 2; ++step) decode(words, 2 * half + step, a.values[step]);
  }

  template <int tokens>
  static __device__ __forceinline__ void multiply(float (&sums)[tokens / 2], const A& a,
                                                  uint64_t x) {
    constexpr uint32_t kStepBytes = 64;  // of x
    wgmma_sparse<BFloat16, tokens, 0>(sums, a.values[0], x, a.metadata);
    wgmma_sparse<BFloat16, tokens, 1>(sums, a.values[1], wgmma_moved(x, kStepBytes), a.metadata);
  }

 private:
  uint4 metadata_;
};

}  // namespace flashsparse::exact_units
