// SPDX-License-Identifier: Apache-2.0
// The steps of a cluster, one after the other: each has a tile, and columns of it.
#pragma once
#include "common/device.cuh"
#include "cuda/mma_units/wgmma_arguments.h"
#include "cuda/shared/tile_range.cuh"
#include "formats/mma_units.h"

namespace flashsparse::mma_units {

class WgmmaTiles {
 public:
  // At the first step of this cluster's range. `tile_tokens` and `tile_rows` of a tile.
  __device__ __forceinline__ WgmmaTiles(const WgmmaArguments& a, int tile_tokens, int tile_rows)
      : columns_((static_cast<int>(unit_cols(a.cols)) - part(a) + a.depth - 1) / a.depth),
        across_((a.tokens - 1) / tile_tokens + 1),
        steps_(((a.rows - 1) / tile_rows + 1) * across_ * columns_),
        clusters_(gridDim.x / a.cluster()),
        part_(part(a)),
        depth_(a.depth) {
    const int cluster = blockIdx.x / a.cluster();
    const int begin = linear::first_tile(steps_, cluster, clusters_);
    left_ = linear::first_tile(steps_, cluster + 1, clusters_) - begin;
    tile_ = begin / columns_;
    column_ = begin - tile_ * columns_;
  }

  __device__ __forceinline__ bool ended() const { return left_ == 0; }
  __device__ __forceinline__ int left() const { return left_; }  // steps
  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ int column() const { return column_ * depth_ + part_; }  // of units

  // The block's position in its cluster, along K and along M.
  static __device__ __forceinline__ int part(const WgmmaArguments& a) {
    return blockIdx.x % a.depth;
  }
  static __device__ __forceinline__ int place_down(const WgmmaArguments& a) {
    return blockIdx.x % a.cluster() / a.depth;
  }
  __device__ __forceinline__ int row_tile(int tile) const { return tile / across_; }
  __device__ __forceinline__ int token_tile(int tile) const { return tile % across_; }

  __device__ __forceinline__ bool many_tokens() const { return across_ > 1; }

  // Moves to the next step; true if it is of another tile.
  __device__ __forceinline__ bool advance() {
    --left_;
    if (++column_ < columns_) return false;
    column_ = 0;
    ++tile_;
    return true;
  }

  // First and last of the clusters that share a tile (none do if depth > 1); whether it is the
  // first of a cluster's range.
  __device__ __forceinline__ int first_cluster(int tile) const {
    return linear::block_of_tile(steps_, tile * columns_, clusters_);
  }
  __device__ __forceinline__ int last_cluster(int tile) const {
    return linear::block_of_tile(steps_, (tile + 1) * columns_ - 1, clusters_);
  }
  __device__ __forceinline__ bool is_first(int cluster, int tile) const {
    return linear::first_tile(steps_, cluster, clusters_) >= tile * columns_;
  }

 private:
  const int columns_, across_, steps_;  // steps of a tile; tiles of the same rows; all steps
  const int clusters_, part_, depth_;
  int left_, tile_, column_;
};

}  // namespace flashsparse::mma_units
