// SPDX-License-Identifier: Apache-2.0
// Decodes a unit from a warp's ring to A of wgmma, one panel of 64 columns of x at a time.
//   A                           operand of a panel
//   kHasExceptions              whether it holds the unit's exceptions, too
//   make(a, weights, panel)     prepares it; panels in order: the first reads the metadata
//   multiply<tokens>(..., a, x) issues its products with the panel of x at `x`
#pragma once
#include "common/wgmma_registers.cuh"
#include "common/wgmma_sparse.cuh"
#include "cuda/exact_units/decode.cuh"

namespace flashsparse::exact_units {

// Calls body(slot), by all lanes, for those of a unit's exceptions whose columns are in the panel;
// `slot` is the lane's.
template <class Body>
__device__ __forceinline__ void for_each_exception(uint32_t slot, int panel, const Body& body) {
  const bool is_here = slot != 0 && slot_column(slot) / kPanelCols == static_cast<uint32_t>(panel);
  uint32_t left = __ballot_sync(~0u, is_here);
  FS_NO_UNROLL
  while (left != 0) {
    const uint32_t one = __shfl_sync(~0u, slot, __ffs(static_cast<int>(left)) - 1);
    left &= left - 1;
    body(one);
  }
}

template <Kind kind>
class WgmmaOperand {  // dense: four steps of 16 columns
 public:
  using A = uint32_t[4][4];
  static constexpr bool kHasExceptions = true;

  template <class Weights>
  __device__ __forceinline__ void make(A& a, const Weights& weights, int panel) {
    uint4 words[kPanelVectors];
    FS_UNROLL
    for (int i = 0; i < kPanelVectors; ++i) words[i] = weights.load(panel * kPanelVectors + i);
    FS_UNROLL
    for (int step = 0; step < 4; ++step) decode(words, step, a[step]);
    insert_exceptions(a, weights.slot(), panel);
  }

  template <int tokens>
  static __device__ __forceinline__ void multiply(float (&sums)[tokens / 2], const A& a,
                                                  uint64_t x) {
    constexpr uint32_t kStepBytes = 32;  // of x
    FS_UNROLL
    for (int step = 0; step < 4; ++step)
      wgmma_registers<BFloat16, tokens>(sums, a[step], wgmma_moved(x, step * kStepBytes));
  }

 private:
  // Puts those of the unit's exceptions whose columns are in the panel in their places, which hold
  // +0. `slot` is the lane's. Registers cannot be indexed: each is compared.
  static __device__ __forceinline__ void insert_exceptions(A& a, uint32_t slot, int panel) {
    for_each_exception(slot, panel, [&](uint32_t one) {
      const uint32_t row = slot_row(one), column = slot_column(one) % kPanelCols;
      if (row % 8 * 4 + column % 8 / 2 != threadIdx.x % 32) return;
      const uint32_t at = column / 8 * 2 + row / 8;  // register of the panel
      const uint32_t bits = uint32_t{slot_bits(one)} << column % 2 * 16;
      FS_UNROLL
      for (uint32_t i = 0; i < 16; ++i) a[i / 4][i % 4] |= i == at ? bits : 0;
    });
  }
};

template <>
class WgmmaOperand<Kind::k24> {  // two steps of 32 columns: half of a panel of the unit
 public:
  struct A {
    uint32_t values[2][4], metadata;
  };
  static constexpr bool kHasExceptions = false;  // whose columns it does not keep

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
