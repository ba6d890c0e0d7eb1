// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from sparse_24 by mma.sp, the decode kernel for 16-bit x: a warp converts
// quantized values of its units to the dtype of x, and multiplies (linear_block.cuh).
#pragma once
#include "common/device.cuh"
#include "common/mma.cuh"
#include "common/mma_sparse.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/sparse_24/group_sums.cuh"
#include "cuda/sparse_24/linear_block.cuh"
#include "cuda/sparse_24/linear_compiled.h"
#include "cuda/sparse_24/linear_shared.h"
#include "cuda/sparse_24/values.cuh"
#include "cuda/sparse_24/weight_ring.cuh"

namespace flashsparse::sparse_24 {

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

  // Adds the product of units. `units`: shared address of this lane's bytes; `x`: of the stage.
  __device__ __forceinline__ void multiply(uint32_t units, uint32_t x) {
    const uint32_t even = x + x_row_, odd = even ^ 64;  // for even and odd steps
    Groups groups(sums, units);
    uint4 metadata[Shape::kRowUnits], values[Shape::kRowUnits];
    load(metadata, units + kUnit.metadata());
    FS_UNROLL
    for (int step = 0; step < kSteps; step += 2) {
      uint32_t words[Shape::kRowUnits];
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        const uint4& of = metadata[m];
        words[m] = step == 0 ? of.x : step == 2 ? of.y : step == 4 ? of.z : of.w;
      }
      const uint32_t panel = step / 2 * Shape::kPanelBytes;
      load_values(values, units, step);
      multiply_step<0>(groups, values, step, even + panel, words);
      load_values(values, units, step + 1);
      multiply_step<1>(groups, values, step + 1, odd + panel, words);
    }
  }

  Tile sums;

 private:
  using Groups = GroupSums<Type, Shape, UnitPlace<Values>>;
  using Vectors = uint4[Shape::kRowUnits];  // one of each unit
  static constexpr UnitLayout kUnit = Values::kLayout;

  static __device__ __forceinline__ void load(Vectors& vectors, uint32_t place) {
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      vectors[m] = load_shared<uint4>(place + m * place_bytes(kUnit));
    }
  }
  // Loads the vectors that begin with this step.
  static __device__ __forceinline__ void load_values(Vectors& values, uint32_t units, int step) {
    constexpr int kLaneSteps = kUnit.lane_steps();
    if (step % kLaneSteps == 0) load(values, units + step / kLaneSteps * kVectorBytes);
  }

  template <int half>
  static __device__ __forceinline__ void multiply_step(
      Groups& groups, const Vectors& values, int step, uint32_t x,
      const uint32_t (&metadata)[Shape::kRowUnits]) {
    uint32_t w[Shape::kRowUnits][4];
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      Values::template widen<Type>(w[m], values[m], step % kUnit.lane_steps());
      groups.scale(m, step, w[m]);
    }
    Tile& to = groups.begin(step);
    FS_UNROLL
    for (int n = 0; n < Shape::kTokens / 8; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, x + n * 8 * 128);
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        mma_sparse_m16n8k32<Type, half>(to[m][n], w[m], b, metadata[m]);
      }
    }
    groups.end(step);
  }

  uint32_t x_row_;  // offset of the row whose address this lane gives to ldmatrix, in an even step
};

// Launch with at most as many blocks as there are steps, plan.threads() threads and
// plan.shared_bytes() of dynamic shared memory.
template <class Type, class Shape, class Values>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_kernel(const mma_units::Arguments arguments, const mma_units::Cut cut) {
  FS_DYNAMIC_SHARED(shared);
  run_block<Type, Shape, Multiplier<Type, Shape, Values>>(arguments, cut, shared_address(shared));
}

template <class Shape, class Values>
constexpr Compiled compiled_in() {
  if constexpr (is_compiled(Shape::kInfo, Values::kLayout, 2)) {
    return {linear_kernel<Float16, Shape, Values>, linear_kernel<BFloat16, Shape, Values>};
  } else {
    return {};
  }
}

template <class Values>
const Compiled* compiled_linear() {
#define FS_COMPILED(tokens, row_units, warps) \
  compiled_in<Shape<tokens, row_units, warps>, Values>(),
  static const Compiled compiled[] = {FS_SPARSE_24_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::sparse_24
