// SPDX-License-Identifier: Apache-2.0
// The steps of a block, one after the other: each has a row tile (`set`), and columns of it.
#pragma once
#include "common/device.cuh"
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/shared/tile_range.cuh"
#include "formats/mma_units.h"

namespace flashsparse::mma_units {

class Steps {
 public:
  // At the first step of this block's range.
  __device__ __forceinline__ Steps(const Arguments& a, const Cut& cut, int row_units)
      : columns_(static_cast<int>(unit_cols(a.cols))),
        set_steps_(ceil_div(columns_, cut.column_warps)),
        steps_(ceil_div(unit_rows(a.rows), cut.row_warps * row_units) * set_steps_) {
    const int begin = linear::first_tile(steps_, blockIdx.x, gridDim.x);
    left_ = linear::first_tile(steps_, blockIdx.x + 1, gridDim.x) - begin;
    set_ = begin / set_steps_;
    in_set_ = begin - set_ * set_steps_;
  }

  __device__ __forceinline__ bool ended() const { return left_ == 0; }
  __device__ __forceinline__ int left() const { return left_; }
  __device__ __forceinline__ int set() const { return set_; }
  // The first column, in units.
  __device__ __forceinline__ int column(const Cut& cut) const { return in_set_ * cut.column_warps; }

  // Whether a warp has a unit in this step: the last step of a row tile may reach past the last
  // column.
  __device__ __forceinline__ bool inside(const Cut& cut, int column_warp) const {
    return column(cut) + column_warp < columns_;
  }

  // Moves to the next step; true if it is of another row tile.
  __device__ __forceinline__ bool advance() {
    --left_;
    if (++in_set_ < set_steps_) return false;
    in_set_ = 0;
    ++set_;
    return true;
  }

  // First and last of the blocks that share a row tile; whether it is the first of a block's range.
  __device__ __forceinline__ int first_block(int set) const {
    return linear::block_of_tile(steps_, set * set_steps_, gridDim.x);
  }
  __device__ __forceinline__ int last_block(int set) const {
    return linear::block_of_tile(steps_, (set + 1) * set_steps_ - 1, gridDim.x);
  }
  __device__ __forceinline__ bool is_first(int block, int set) const {
    return linear::first_tile(steps_, block, gridDim.x) >= set * set_steps_;
  }

 private:
  static __device__ __forceinline__ int ceil_div(int64_t a, int b) {
    return static_cast<int>((a + b - 1) / b);
  }

  const int columns_, set_steps_, steps_;  // units of columns; steps of a row tile, of all
  int left_, set_, in_set_;
};

}  // namespace flashsparse::mma_units
