// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from hybrid_units, the decode kernel (few tokens): a block is one of sparse_24's
// (cuda/sparse_24/linear_block.cuh). A warp multiplies a 2:4 unit by mma.sp, and a dense one by two
// mma for each 32 columns, with the same registers of x. Which of them is the same for all its
// lanes. x of a step is loaded once, before the kinds of the step's units part the ways.
#pragma once
#include "common/device.cuh"
#include "common/mma.cuh"
#include "common/mma_sparse.cuh"
#include "cuda/hybrid_units/linear_compiled.h"
#include "cuda/hybrid_units/linear_plan.h"
#include "cuda/hybrid_units/linear_shared.h"
#include "cuda/hybrid_units/weight_ring.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/sparse_24/group_sums.cuh"
#include "cuda/sparse_24/linear_block.cuh"
#include "cuda/sparse_24/values.cuh"

namespace flashsparse::hybrid_units {

template <class Type, class Shape, class Values_>
class Multiplier {
 public:
  using Values = Values_;
  using Ring = WeightRing<Shape, Values>;
  using Sum = float;
  using Tile = mma_units::SumsTile<Shape>;
  static constexpr int kXBytes = 2;

  // `x_unit`: offset of the warp's unit of columns in a stage of x.
  __device__ __forceinline__ explicit Multiplier(uint32_t x_unit) {
    const int lane = threadIdx.x % 32;
    x_row_ = x_unit + lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
    mma_units::clear<Shape>(sums);
  }

  // Adds the product of units. `x`: shared address of the stage.
  __device__ __forceinline__ void multiply(const StepUnits& units, uint32_t x) {
    const uint32_t even = x + x_row_, odd = even ^ 64;  // for even and odd steps
    Groups groups(sums, units.place);
    uint4 metadata[kUnits], values[kUnits];
    FS_UNROLL
    for (int m = 0; m < kUnits; ++m) {  // of a dense unit these are values
      metadata[m] = load_shared<uint4>(place_of(units, m) + kLayout.metadata());
    }
    FS_UNROLL
    for (int step = 0; step < kSteps; step += 2) {
      uint32_t words[kUnits];
      FS_UNROLL
      for (int m = 0; m < kUnits; ++m) {
        const uint4& of = metadata[m];
        words[m] = step == 0 ? of.x : step == 2 ? of.y : step == 4 ? of.z : of.w;
      }
      const uint32_t panel = step / 2 * Shape::kPanelBytes;
      multiply_step<0>(groups, units, values, step, even + panel, words);
      multiply_step<1>(groups, units, values, step + 1, odd + panel, words);
    }
  }

  Tile sums;

 private:
  using Place = UnitPlace<Values>;
  using Groups = sparse_24::GroupSums<Type, Shape, Place>;
  static constexpr UnitLayout kLayout = Values::kLayout;
  static constexpr int kUnits = Shape::kRowUnits, kTokenBlocks = Shape::kTokens / 8;
  static constexpr int kHeld = kLayout.lane_steps();  // fragments of a lane in a vector

  static __device__ __forceinline__ uint32_t place_of(const StepUnits& units, int unit) {
    return units.place + unit * Place::kBytes;
  }

  template <int half>
  static __device__ __forceinline__ void multiply_step(Groups& groups, const StepUnits& units,
                                                       uint4 (&values)[kUnits], int step,
                                                       uint32_t x,
                                                       const uint32_t (&metadata)[kUnits]) {
    uint32_t b[kTokenBlocks][4];
    FS_UNROLL
    for (int n = 0; n < kTokenBlocks; ++n) ldmatrix_x4(b[n], x + n * 8 * 128);
    Tile& to = groups.begin(step);
    FS_UNROLL
    for (int m = 0; m < kUnits; ++m) {
      if (units.is_dense(m)) {
        uint32_t a[2][4];
        widen(a[0], values[m], place_of(units, m), 2 * step);
        widen(a[1], values[m], place_of(units, m), 2 * step + 1);
        groups.scale(m, step, a[0], a[1]);
        FS_UNROLL
        for (int n = 0; n < kTokenBlocks; ++n) {
          mma_m16n8k16<Type>(to[m][n], a[0], b[n][0], b[n][1]);
          mma_m16n8k16<Type>(to[m][n], a[1], b[n][2], b[n][3]);
        }
      } else {
        uint32_t a[4];
        widen(a, values[m], place_of(units, m), step);
        groups.scale(m, step, a);
        FS_UNROLL
        for (int n = 0; n < kTokenBlocks; ++n) {
          mma_sparse_m16n8k32<Type, half>(to[m][n], a, b[n], metadata[m]);
        }
      }
    }
    groups.end(step);
  }

  // Converts a fragment of a unit, after loading the vector that begins with it.
  static __device__ __forceinline__ void widen(uint32_t (&a)[4], uint4& vector, uint32_t unit,
                                               int fragment) {
    if (fragment % kHeld == 0) vector = load_shared<uint4>(unit + fragment / kHeld * kVectorBytes);
    Values::template widen<Type>(a, vector, fragment % kHeld);
  }

  uint32_t x_row_;  // offset of the row whose address this lane gives to ldmatrix, in an even step
};

// Launch with at most as many blocks as there are steps, plan.threads() threads and
// plan.shared_bytes() of dynamic shared memory.
template <class Type, class Shape, class Values>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_kernel(const Arguments arguments, const mma_units::Cut cut) {
  FS_DYNAMIC_SHARED(shared);
  sparse_24::run_block<Type, Shape, Multiplier<Type, Shape, Values>>(arguments, cut,
                                                                     shared_address(shared));
}

template <class Shape, class Values>
constexpr Compiled compiled_in() {
  if constexpr (is_compiled(Shape::kInfo, Values::kLayout)) {
    return {linear_kernel<Float16, Shape, Values>, linear_kernel<BFloat16, Shape, Values>};
  } else {
    return {};
  }
}

template <class Values>
const Compiled* compiled_linear() {
#define FS_COMPILED(tokens, row_units, warps) \
  compiled_in<sparse_24::Shape<tokens, row_units, warps>, Values>(),
  static const Compiled compiled[] = {FS_HYBRID_UNITS_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::hybrid_units
