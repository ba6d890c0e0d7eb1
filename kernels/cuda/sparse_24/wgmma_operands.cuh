// SPDX-License-Identifier: Apache-2.0
// How the units in a warp's registers become A of wgmma.sp, a panel of x at a time: 128 bytes of
// each token, two instructions.
//   Values              of the units
//   kPanels             of a unit
//   kXBytes             of an element of x: 2, or 1 of codes, with scales of tokens
//   Sum                 of products: float or int32_t
//   A                   of a panel
//   make(a, unit, panel)
//   multiply<tokens>(sums, a, x)
#pragma once
#include "common/integer.cuh"
#include "common/wgmma_sparse.cuh"
#include "common/widen.cuh"
#include "cuda/sparse_24/codes.cuh"
#include "cuda/sparse_24/values.cuh"
#include "cuda/sparse_24/wgmma_weights.cuh"

namespace flashsparse::sparse_24 {

inline constexpr uint32_t kHalfPanelBytes = 64;  // of x, by an instruction

// Values become the 16 bits of x, or are so already.
template <class Type, class Values_>
class WidenedOperand {
 public:
  using Values = Values_;
  using Sum = float;
  static constexpr int kPanels = 4;
  static constexpr int kXBytes = 2;
  struct A {
    uint32_t values[2][4], metadata;
  };

  __device__ __forceinline__ void make(A& a, const WgmmaUnit<Values>& unit, int panel) {
    const uint4& of = unit.metadata;
    a.metadata = panel == 0 ? of.x : panel == 1 ? of.y : panel == 2 ? of.z : of.w;
    FS_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int step = 2 * panel + i;
      Values::template widen<Type>(a.values[i], unit.values[step / kLayout.lane_steps()],
                                   step % kLayout.lane_steps());
      if constexpr (kLayout.group > 0) scale(a.values[i], unit, step);
    }
  }

  template <int tokens>
  static __device__ __forceinline__ void multiply(float (&sums)[tokens / 2], const A& a,
                                                  uint64_t x) {
    wgmma_sparse<Type, tokens, 0>(sums, a.values[0], x, a.metadata);
    wgmma_sparse<Type, tokens, 1>(sums, a.values[1], wgmma_moved(x, kHalfPanelBytes), a.metadata);
  }

 private:
  static constexpr UnitLayout kLayout = Values::kLayout;

  // Multiplies A of a step by the scales of its group, rounding as unpacking does.
  __device__ __forceinline__ void scale(uint32_t (&a)[4], const WgmmaUnit<Values>& unit, int step) {
    const int row = threadIdx.x % 32 / 4, column = step * kStepCols;
    if (column % kLayout.group == 0) {
      const int word = column / kLayout.group * (kUnitRows / 2);
      const uint32_t own = unit.scales[word / 32], both = row % 2 ? 0x3232 : 0x1010;
      upper_ = prmt(__shfl_sync(~0u, own, word % 32 + row / 2), 0, both);
      lower_ = prmt(__shfl_sync(~0u, own, word % 32 + row / 2 + 4), 0, both);
    }
    constexpr uint32_t kMinusZero = 0x80008000;  // which changes nothing
    FS_UNROLL
    for (int i = 0; i < 4; ++i) a[i] = fma_two<Type>(a[i], i % 2 ? lower_ : upper_, kMinusZero);
  }

  // Scales of the lane's two rows for the latest group, in both halves of a word.
  uint32_t upper_ = 0, lower_ = 0;
};

// Codes of 8 bits as they are, by codes of x.
template <class Codes>
class CodesOperand {
 public:
  using Values = typename Codes::Values;
  using Sum = typename Codes::Sum;
  static constexpr int kPanels = 2;
  static constexpr int kXBytes = 1;
  struct A {
    uint32_t values[2][4], metadata[2];
  };

  __device__ __forceinline__ void make(A& a, const WgmmaUnit<Values>& unit, int panel) {
    FS_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int pair = 2 * panel + i;  // of steps: 64 columns
      order_values<Codes>(a.values[i], unit.values[pair]);
      const uint4& of = unit.metadata;
      a.metadata[i] = order_metadata(pair == 0 ? of.x : pair == 1 ? of.y : pair == 2 ? of.z : of.w);
    }
  }

  template <int tokens>
  static __device__ __forceinline__ void multiply(Sum (&sums)[tokens / 2], const A& a, uint64_t x) {
    Codes::template multiply<tokens>(sums, a.values[0], x, a.metadata[0]);
    Codes::template multiply<tokens>(sums, a.values[1], wgmma_moved(x, kHalfPanelBytes),
                                     a.metadata[1]);
  }
};

}  // namespace flashsparse::sparse_24
