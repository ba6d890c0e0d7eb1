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
    tile_ = cut.by_blocks(tiles * blockIdx.x);
    end_ = cut.by_blocks(tiles * (blockIdx.x + 1));
  }

  __device__ __forceinline__ bool ended() const { return tile_ == end_; }
  __device__ __forceinline__ int slot_block() const { return cut_.by_sets(tile_); }
  __device__ __forceinline__ int set() const { return tile_ - slot_block() * cut_.sets; }
  // The first column, in units.
  __device__ __forceinline__ int column() const { return in_set_ * cut_.column_warps; }
  // Whether a warp has a unit in this step.
  __device__ __forceinline__ bool inside(int column_warp) const {
    return column() + column_warp < cut_.unit_cols;
  }
  __device__ __forceinline__ bool ends_set() const { return in_set_ + 1 == cut_.set_steps; }
  // Whether this row tile is the last one that needs its x.
  __device__ __forceinline__ bool ends_x() const {
    return !cut_.x_resident || tile_ + 1 == end_ || set() + 1 == cut_.sets;
  }

  // Moves to the next step; true if it is of another block of slots.
  __device__ __forceinline__ bool advance() {
    if (++in_set_ < cut_.set_steps) return false;
    in_set_ = 0;
    ++tile_;
    return set() == 0;
  }
  // From a first step to that of the next row tile that needs other x in shared memory.
  __device__ __forceinline__ void skip_x() {
    tile_ = cut_.x_resident ? min(end_, (slot_block() + 1) * cut_.sets) : tile_ + 1;
  }

 private:
  // Few registers: what can be computed from the row tile, is.
  const Cut& cut_;
  int tile_, end_;  // row tiles of all blocks of slots: this one, and the end of the range
  int in_set_ = 0;
};

}  // namespace flashsparse::experts
