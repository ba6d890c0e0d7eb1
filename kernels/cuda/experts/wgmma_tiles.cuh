// SPDX-License-Identifier: Apache-2.0
// The steps of a cluster in the grouped products by wgmma: each has a tile, which is a row tile of
// an expert by a block of its slots, and columns of it. Tiles are in this order: expert, row tile,
// block of slots; and the next one goes to the next cluster. So the blocks of slots that share rows
// of the weight are multiplied at the same time, and memory is read once.
#pragma once
#include "common/device.cuh"
#include "cuda/experts/wgmma_arguments.h"

namespace flashsparse::experts {

class WgmmaTiles {
 public:
  struct Tile {
    int expert, row_tile, slot_block;
  };

  // At the first step of this cluster.
  __device__ __forceinline__ explicit WgmmaTiles(const WgmmaArguments& a)
      : a_(a), tile_(a.by_cluster(blockIdx.x)), end_(a.order.blocks[0] * a.row_tiles) {
    if (ended()) return;
    look(tile_);
    take();
  }

  __device__ __forceinline__ bool ended() const { return tile_ >= end_; }
  __device__ __forceinline__ const Tile& tile() const { return at_; }
  __device__ __forceinline__ int column() const { return column_; }  // of units
  __device__ __forceinline__ int token_tile(const Tile& tile) const { return tile.slot_block; }
  __device__ __forceinline__ bool many_tokens() const { return true; }  // of some experts

  // As mma_units::WgmmaTiles::unit_row.
  __device__ __forceinline__ int unit_row(int units, int unit) const {
    return at_.expert * a_.unit_rows + min(at_.row_tile * units + unit, a_.unit_rows - 1);
  }

  // Moves to the next step; true if it is of another tile.
  __device__ __forceinline__ bool advance() {
    if (++column_ < a_.unit_cols) return false;
    column_ = 0;
    tile_ += a_.clusters;
    if (!ended()) take();
    return true;
  }

 private:
  // Of the tile that was looked for; then looks for the next one, long before it is needed.
  __device__ __forceinline__ void take() {
    const uint32_t local = tile_ - span_.x * a_.row_tiles, row_tile = local / span_.y;
    at_ = {expert_, static_cast<int>(row_tile),
           static_cast<int>(span_.x + local - row_tile * span_.y)};
    if (tile_ + a_.clusters < end_) look(tile_ + a_.clusters);
  }
  __device__ __forceinline__ void look(int tile) {
    const int block = a_.by_row_tiles(tile);  // one of the same expert
    expert_ = a_.order.experts[block];
    span_ = reinterpret_cast<const uint2*>(a_.order.spans)[block];
  }

  const WgmmaArguments& a_;
  int tile_, end_, column_ = 0;
  Tile at_ = {};
  int expert_ = 0;  // of the next tile, or of this one at the end
  uint2 span_ = {};
};

}  // namespace flashsparse::experts
