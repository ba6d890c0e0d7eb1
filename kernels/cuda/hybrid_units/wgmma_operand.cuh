// SPDX-License-Identifier: Apache-2.0
// Turns a unit of either kind into A of wgmma.sp (cuda/sparse_24/wgmma_operands.cuh).
//
// A warpgroup's four warps issue the same instructions, and their units may be of both kinds. So
// all of them multiply as if theirs were 2:4, of a dense one the first half; then, if one of the
// four is dense, they multiply second halves, which in a 2:4 unit are zeros.
#pragma once
#include "cuda/hybrid_units/wgmma_weights.cuh"
#include "cuda/sparse_24/wgmma_operands.cuh"

namespace flashsparse::hybrid_units {

template <class Type, class Values_>
class WgmmaOperand {
 public:
  using Values = Values_;
  using Sum = float;
  using First = sparse_24::WidenedOperand<Type, Values>;
  template <class Shape>
  using Weights = WgmmaWeights<WgmmaOperand, Shape>;
  static constexpr int kPanels = First::kPanels, kXBytes = First::kXBytes;
  struct A {
    typename First::A first, second;
    bool any_dense;
  };

  __device__ __forceinline__ void make(A& a, const WgmmaUnit<Values>& unit, int panel) {
    a.any_dense = unit.any_dense();
    first_.make(a.first, unit, panel);
    if (!a.any_dense) return;
    a.second.metadata = kSecondHalf;
    first_.widen(a.second.values, unit.second, unit, panel);
  }

  // Each branch has the whole group: around a branch inside of one, ptxas issues an empty product.
  template <int tokens>
  static __device__ __forceinline__ void multiply(float (&sums)[1][tokens / 2], const A (&a)[1],
                                                  uint64_t x) {
    if (a[0].any_dense) {
      sparse_24::issue_group(sums, a, [&](auto& own, const A& each) {
        First::template add<tokens>(own, each.first, x);
        First::template add<tokens>(own, each.second, x);
      });
    } else {
      sparse_24::issue_group(sums, a, [&](auto& own, const A& each) {
        First::template add<tokens>(own, each.first, x);
      });
    }
  }

 private:
  First first_;
};

}  // namespace flashsparse::hybrid_units
