// SPDX-License-Identifier: Apache-2.0
// The tiles of y that a block multiplies, one after the other: every gridDim.x-th, or a single one
// if K is split.
#pragma once
#include "common/device.cuh"
#include "cuda/nm_gather/tiles_shape.h"

namespace flashsparse::nm_gather {

class TileWalk {
 public:
  __device__ __forceinline__ explicit TileWalk(const TileArguments& a)
      : a_(a), stride_(gridDim.x / a.splits), tile_(blockIdx.x / a.splits) {
    look();
  }

  __device__ __forceinline__ bool ended() const { return tile_ >= a_.row_blocks * a_.token_blocks; }
  __device__ __forceinline__ void advance() {
    tile_ += stride_;
    look();
  }

  int row_block, token_block;

 private:
  // Tiles are ordered by bands of rows, in a band by blocks of tokens, and in these by rows.
  __device__ __forceinline__ void look() {
    const int band_tiles = a_.band * a_.token_blocks;
    const int band = tile_ / band_tiles, in_band = tile_ - band * band_tiles;
    const int across = max(min(a_.band, a_.row_blocks - band * a_.band), 1);
    token_block = in_band / across;
    row_block = band * a_.band + in_band - token_block * across;
  }

  const TileArguments& a_;
  const int stride_;
  int tile_;
};

}  // namespace flashsparse::nm_gather
