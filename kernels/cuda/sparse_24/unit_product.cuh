// SPDX-License-Identifier: Apache-2.0
// Multiplies units of 2:4 in shared memory by x of their columns, by mma.sp: a warp converts
// quantized values to the dtype of x on the way.
#pragma once
#include "common/mma.cuh"
#include "common/mma_sparse.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/sparse_24/group_sums.cuh"
#include "cuda/sparse_24/values.cuh"

namespace flashsparse::sparse_24 {

// Place says where in shared memory units have their parts (UnitPlace in linear_shared.h).
template <class Type, class Shape, class Values, class Place>
class UnitProduct {
 public:
  using Tile = mma_units::SumsTile<Shape>;
  using Vectors = uint4[Shape::kRowUnits];  // one of each unit

  // `x_unit`: offset of the warp's unit of columns in a stage of x.
  __device__ __forceinline__ explicit UnitProduct(uint32_t x_unit) {
    const int lane = threadIdx.x % 32;
    x_row_ = x_unit + lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
  }

  // Adds the product of units with this metadata. `units`: shared address of this lane's bytes of
  // their values; `x`: of the stage.
  __device__ __forceinline__ void add(Tile& sums, uint32_t units, const Vectors& metadata,
                                      uint32_t x) const {
    const uint32_t even = x + x_row_, odd = even ^ 64;  // for even and odd steps
    Groups groups(sums, units);
    Vectors values;
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

  static __device__ __forceinline__ void load(Vectors& vectors, uint32_t place) {
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      vectors[m] = load_shared<uint4>(place + m * Place::kBytes);
    }
  }

 private:
  using Groups = GroupSums<Type, Shape, Place>;
  static constexpr int kLaneSteps = Values::kLayout.lane_steps();

  // Loads the vectors that begin with this step.
  static __device__ __forceinline__ void load_values(Vectors& values, uint32_t units, int step) {
    if (step % kLaneSteps == 0) load(values, units + step / kLaneSteps * kVectorBytes);
  }

  template <int half>
  static __device__ __forceinline__ void multiply_step(
      Groups& groups, const Vectors& values, int step, uint32_t x,
      const uint32_t (&metadata)[Shape::kRowUnits]) {
    uint32_t w[Shape::kRowUnits][4];
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      Values::template widen<Type>(w[m], values[m], step % kLaneSteps);
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

}  // namespace flashsparse::sparse_24
