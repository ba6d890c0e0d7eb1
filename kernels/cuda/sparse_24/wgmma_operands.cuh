// SPDX-License-Identifier: Apache-2.0
// Turns a unit in a warp's registers into A of wgmma.sp, one panel of x (128 bytes of each token,
// two instructions) at a time.
//   Values              of the units (values.cuh)
//   Weights<Shape>      loads the units (wgmma_weights.cuh)
//   kPanels             of a unit
//   kXBytes             of an element of x: 2, or 1 if quantized, with scales of tokens
//   Sum                 type of accumulators: float or int32_t
//   A                   operand of a panel
//   make(a, unit, panel)         prepares it
//   multiply<tokens>(sums, a, x) issues the products of each row of units, as one group
#pragma once
#include "common/integer.cuh"
#include "common/wgmma_sparse.cuh"
#include "common/widen.cuh"
#include "cuda/sparse_24/codes.cuh"
#include "cuda/sparse_24/values.cuh"
#include "cuda/sparse_24/wgmma_weights.cuh"

namespace flashsparse::sparse_24 {

inline constexpr uint32_t kHalfPanelBytes = 64;  // of x, for one instruction

// Issues the products add(sums, a) of each row of units, as one group.
template <class Sums, class A, int rows, class Add>
__device__ __forceinline__ void issue_group(Sums (&sums)[rows], const A (&a)[rows],
                                            const Add& add) {
  wgmma_begin();
  FS_UNROLL
  for (int i = 0; i < rows; ++i) add(sums[i], a[i]);
  wgmma_commit();
}

// For 16-bit x: values are converted to its dtype, unless they are native.
template <class Type, class Values_>
class WidenedOperand {
 public:
  using Values = Values_;
  using Sum = float;
  template <class Shape>
  using Weights = WgmmaWeights<WidenedOperand, Shape>;
  static constexpr int kPanels = 4;
  static constexpr int kXBytes = 2;
  struct A {
    uint32_t values[2][4], metadata;
  };

  __device__ __forceinline__ void make(A& a, const WgmmaUnit<Values>& unit, int panel) {
    a.metadata = unit.metadata_word(panel);
    widen(a.values, unit.values, unit, panel);
  }
  // Converts the values in `vectors` of both steps of a panel, by the unit's scales.
  __device__ __forceinline__ void widen(uint32_t (&words)[2][4],
                                        const uint4 (&vectors)[WgmmaUnit<Values>::kVectors],
                                        const WgmmaUnit<Values>& unit, int panel) {
    FS_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int step = 2 * panel + i;
      Values::template widen<Type>(words[i], vectors[step / kLayout.lane_steps()],
                                   step % kLayout.lane_steps());
      if constexpr (kLayout.group > 0) scale(words[i], unit, step);
    }
  }

  template <int tokens, int rows>
  static __device__ __forceinline__ void multiply(float (&sums)[rows][tokens / 2],
                                                  const A (&a)[rows], uint64_t x) {
    issue_group(sums, a, [&](auto& own, const A& each) { add<tokens>(own, each, x); });
  }
  template <int tokens>
  static __device__ __forceinline__ void add(float (&sums)[tokens / 2], const A& a, uint64_t x) {
    wgmma_sparse<Type, tokens, 0>(sums, a.values[0], x, a.metadata);
    wgmma_sparse<Type, tokens, 1>(sums, a.values[1], wgmma_moved(x, kHalfPanelBytes), a.metadata);
  }

 private:
  static constexpr UnitLayout kLayout = Values::kLayout;

  // Multiplies A of a step by the scales of its group, with the rounding of unpacking.
  __device__ __forceinline__ void scale(uint32_t (&a)[4], const WgmmaUnit<Values>& unit, int step) {
    const int row = threadIdx.x % 32 / 4, column = step * kStepCols;
    if (column % kLayout.group == 0) {
      const int word = column / kLayout.group * (kUnitRows / 2);
      const uint32_t own = unit.scales[word / 32], both = row % 2 ? 0x3232 : 0x1010;
      upper_ = prmt(__shfl_sync(~0u, own, word % 32 + row / 2), 0, both);
      lower_ = prmt(__shfl_sync(~0u, own, word % 32 + row / 2 + 4), 0, both);
    }
    constexpr uint32_t kMinusZero = 0x80008000;  // adding it changes nothing
    FS_UNROLL
    for (int i = 0; i < 4; ++i) a[i] = fma_two<Type>(a[i], i % 2 ? lower_ : upper_, kMinusZero);
  }

  // Scales of the lane's two rows for the latest group, in both halves of a word.
  uint32_t upper_ = 0, lower_ = 0;
};

// 8-bit weight by 8-bit x (W8A8), without conversion.
template <class Codes>
class CodesOperand {
 public:
  using Values = typename Codes::Values;
  using Sum = typename Codes::Sum;
  template <class Shape>
  using Weights = WgmmaWeights<CodesOperand, Shape>;
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
      a.metadata[i] = order_metadata(unit.metadata_word(pair));
    }
  }

  template <int tokens, int rows>
  static __device__ __forceinline__ void multiply(Sum (&sums)[rows][tokens / 2], const A (&a)[rows],
                                                  uint64_t x) {
    issue_group(sums, a, [&](auto& own, const A& each) {
      Codes::template multiply<tokens>(own, each.values[0], x, each.metadata[0]);
      Codes::template multiply<tokens>(own, each.values[1], wgmma_moved(x, kHalfPanelBytes),
                                       each.metadata[1]);
    });
  }
};

}  // namespace flashsparse::sparse_24
