// SPDX-License-Identifier: Apache-2.0
// The steps of a block, one after the other: each has a row tile (`set`), and columns of it.
#pragma once
#include "common/device.cuh"
#include "cuda/mma_units/linear_arguments.h"
#include "formats/mma_units.h"

namespace flashsparse::mma_units {

class Steps {
 public:
  // At the first step of this block's range.
  __device__ __forceinline__ explicit Steps(const Cut& cut) : cut_(cut) {
    const int begin = first_step(blockIdx.x);
    left_ = first_step(blockIdx.x + 1) - begin;
    set_ = cut.by_set_steps(begin);
    in_set_ = begin - set_ * cut.set_steps;
  }

  __device__ __forceinline__ bool ended() const { return left_ == 0; }
  __device__ __forceinline__ int left() const { return left_; }
  __device__ __forceinline__ int set() const { return set_; }
  __device__ __forceinline__ int in_set() const { return in_set_; }
  // The first column, in units; and that of a later one of the block's steps.
  __device__ __forceinline__ int column() const { return in_set_ * cut_.column_warps; }
  __device__ __forceinline__ int column_after(int steps) const {
    const int at = in_set_ + steps;
    return (at - static_cast<int>(cut_.by_set_steps(at)) * cut_.set_steps) * cut_.column_warps;
  }

  // Whether a warp has a unit in this step: the last step of a row tile may reach past the last
  // column.
  __device__ __forceinline__ bool inside(int column_warp) const {
    return column() + column_warp < cut_.unit_cols;
  }

  // Moves to the next step; true if it is of another row tile.
  __device__ __forceinline__ bool advance() {
    --left_;
    if (++in_set_ < cut_.set_steps) return false;
    in_set_ = 0;
    ++set_;
    return true;
  }

  // First and last of the blocks that share a row tile; whether it is the first of a block's range.
  __device__ __forceinline__ int first_block(int set) const {
    return block_of(set * cut_.set_steps);
  }
  __device__ __forceinline__ int last_block(int set) const {
    return block_of((set + 1) * cut_.set_steps - 1);
  }
  __device__ __forceinline__ bool is_first(int block, int set) const {
    return first_step(block) >= set * cut_.set_steps;
  }

 private:
  // linear::first_tile and linear::block_of_tile, by the dividers of the launch.
  __device__ __forceinline__ int first_step(uint32_t block) const {
    return cut_.by_blocks(cut_.steps * block);
  }
  __device__ __forceinline__ int block_of(uint32_t step) const {
    return cut_.by_steps((step + 1) * gridDim.x - 1);
  }

  const Cut& cut_;
  int left_, set_, in_set_;
};

}  // namespace flashsparse::mma_units
