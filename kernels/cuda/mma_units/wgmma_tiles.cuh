// SPDX-License-Identifier: Apache-2.0
// The steps of a cluster, one after the other: each has a tile, and columns of it.
#pragma once
#include "common/device.cuh"
#include "cuda/mma_units/wgmma_arguments.h"

namespace flashsparse::mma_units {

class WgmmaTiles {
 public:
  // At the first step of this cluster's range.
  __device__ __forceinline__ explicit WgmmaTiles(const WgmmaArguments& a) : a_(a) {
    const int cluster = a.by_cluster(blockIdx.x);
    if (a.depth > 1) {
      tile_ = cluster;
      column_ = part(a);
      left_ = a.columns + (column_ < a.longer);
    } else {
      const int begin = first_step(cluster);
      tile_ = a.by_columns(begin);
      column_ = begin - tile_ * a.columns;
      left_ = first_step(cluster + 1) - begin;
    }
  }

  __device__ __forceinline__ bool ended() const { return left_ == 0; }
  __device__ __forceinline__ int left() const { return left_; }  // steps
  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ int column() const { return column_; }  // of units

  // The block's position in its cluster, along K and along M: both have a power of two of blocks.
  static __device__ __forceinline__ int part(const WgmmaArguments& a) {
    return blockIdx.x & (a.depth - 1);
  }
  static __device__ __forceinline__ int place_down(const WgmmaArguments& a) {
    return a.by_depth(blockIdx.x & (a.cluster() - 1));
  }
  __device__ __forceinline__ int row_tile(int tile) const { return a_.by_across(tile); }
  __device__ __forceinline__ int token_tile(int tile) const {
    return tile - row_tile(tile) * a_.across;
  }

  __device__ __forceinline__ bool many_tokens() const { return a_.across > 1; }
  // The row of units that row `unit` of the current tile's `units` is. Past the end it is the last
  // one: it is multiplied, but not stored.
  __device__ __forceinline__ int unit_row(int units, int unit) const {
    return min(row_tile(tile_) * units + unit, a_.unit_rows - 1);
  }

  // Moves to the next step; true if it is of another tile.
  __device__ __forceinline__ bool advance() {
    --left_;
    column_ += a_.depth;
    if (column_ < a_.unit_cols) return false;
    column_ = 0;
    ++tile_;
    return true;
  }

  // First and last of the clusters that share a tile (none do if depth > 1); whether it is the
  // first of a cluster's range.
  __device__ __forceinline__ int first_cluster(int tile) const {
    return cluster_of(tile * a_.columns);
  }
  __device__ __forceinline__ int last_cluster(int tile) const {
    return cluster_of((tile + 1) * a_.columns - 1);
  }
  __device__ __forceinline__ bool is_first(int cluster, int tile) const {
    return first_step(cluster) >= tile * a_.columns;
  }

 private:
  // linear::first_tile and linear::block_of_tile (tile_range.cuh), by the dividers of the launch.
  __device__ __forceinline__ int first_step(uint32_t cluster) const {
    return a_.by_clusters(a_.steps * cluster);
  }
  __device__ __forceinline__ int cluster_of(uint32_t step) const {
    return a_.by_steps((step + 1) * a_.clusters - 1);
  }

  const WgmmaArguments& a_;
  int left_, tile_, column_;
};

}  // namespace flashsparse::mma_units
