// SPDX-License-Identifier: Apache-2.0
// The steps of a thread block, one after the other: each has a block of slots, a row tile (`set`)
// of its expert, and columns of it. Row tiles of a block of slots follow each other, so that its x
// can stay in shared memory, and blocks of slots of one expert do, so that its weight is in the L2
// when it is read again. A thread block has whole row tiles: nothing is reduced between thread
// blocks, and what a slot gets does not depend on the others.
#pragma once
#include "common/device.cuh"
#include "cuda/experts/arguments.h"

namespace flashsparse::experts {

class Steps {
 public:
  // At the first step of this thread block's range, of so many blocks of slots.
  __device__ __forceinline__ Steps(const Cut& cut, int slot_blocks) : cut_(cut) {
    const uint32_t tiles = slot_blocks * cut.sets;
    const int begin = cut.by_blocks(tiles * blockIdx.x);
    tiles_ = static_cast<int>(cut.by_blocks(tiles * (blockIdx.x + 1))) - begin;
    slot_block_ = cut.by_sets(begin);
    set_ = begin - slot_block_ * cut.sets;
  }

  __device__ __forceinline__ bool ended() const { return tiles_ == 0; }
  __device__ __forceinline__ int slot_block() const { return slot_block_; }
  __device__ __forceinline__ int set() const { return set_; }
  // The first column, in units.
  __device__ __forceinline__ int column() const { return in_set_ * cut_.column_warps; }
  // Whether a warp has a unit in this step.
  __device__ __forceinline__ bool inside(int column_warp) const {
    return column() + column_warp < cut_.unit_cols;
  }
  __device__ __forceinline__ bool ends_set() const { return in_set_ + 1 == cut_.set_steps; }
  // Whether this row tile is the last one that needs its x.
  __device__ __forceinline__ bool ends_x() const {
    return !cut_.x_resident || tiles_ == 1 || set_ + 1 == cut_.sets;
  }
  // Whether the range has another block of slots.
  __device__ __forceinline__ bool has_more_slots() const { return tiles_ > cut_.sets - set_; }

  // Moves to the next step; true if it is of another block of slots.
  __device__ __forceinline__ bool advance() {
    if (++in_set_ < cut_.set_steps) return false;
    return skip_set();
  }
  // Moves to the next row tile.
  __device__ __forceinline__ bool skip_set() {
    in_set_ = 0;
    --tiles_;
    if (++set_ < cut_.sets) return false;
    set_ = 0;
    ++slot_block_;
    return true;
  }
  // Moves to the next row tile that needs other x in shared memory.
  __device__ __forceinline__ void skip_x() {
    if (!cut_.x_resident) {
      skip_set();
    } else {
      tiles_ -= min(tiles_, cut_.sets - set_);
      set_ = 0;
      ++slot_block_;
    }
  }

 private:
  const Cut& cut_;
  int tiles_;  // row tiles left, with this one
  int slot_block_, set_, in_set_ = 0;
};

}  // namespace flashsparse::experts
