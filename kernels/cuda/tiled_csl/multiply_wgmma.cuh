// SPDX-License-Identifier: Apache-2.0
// Multiplies a tile by x with Hopper's wgmma: a team is a warpgroup, and the tensor cores read tile
// and x from shared memory.
#pragma once
#include "common/wgmma.cuh"
#include "cuda/tiled_csl/team.cuh"
#include "cuda/tiled_csl/tile_x.cuh"

namespace flashsparse::linear {

template <class Type_, class Shape>
class WgmmaMultiplier {
 public:
  using Type = Type_;

  __device__ __forceinline__ WgmmaMultiplier(const Arguments& a, uint32_t tile, uint32_t x)
      : tile_(tile), tile_operand_(wgmma_operand(tile)), x_operand_(wgmma_operand(x)), x_(a, x) {}

  __device__ __forceinline__ void clear() {
    FS_UNROLL
    for (int m = 0; m < 2; ++m) {
      FS_UNROLL
      for (int i = 0; i < kTokens / 2; ++i) sums_[m][i] = 0;
    }
  }

  __device__ __forceinline__ void load_x(int column) { x_.load(column); }

  // Call before the team barrier after which wgmma reads the tile and x.
  __device__ __forceinline__ void wait_x() {
    x_.wait();
    fence_for_wgmma();
  }

  __device__ __forceinline__ void multiply() {
    const uint64_t x = wgmma_moved(x_operand_, x_.offset());
    wgmma_hold(sums_[0]);
    wgmma_hold(sums_[1]);
    wgmma_begin();
    FS_UNROLL
    for (int k = 0; k < kTileCols * 2; k += 32) {  // bytes of 16 columns
      FS_UNROLL
      for (int m = 0; m < 2; ++m) {
        wgmma<Type, kTokens>(sums_[m], wgmma_moved(tile_operand_, m * (Shape::kTileBytes / 2) + k),
                             wgmma_moved(x, k));
      }
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void wait() {
    wgmma_wait(sums_[0]);
    wgmma_wait(sums_[1]);
  }

  // Stores the accumulators of a round's tokens to the team's tile.
  __device__ __forceinline__ void store_sums(int round) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    FS_UNROLL
    for (int m = 0; m < 2; ++m) {
      FS_UNROLL
      for (int i = 0; i < kTokens / 2; ++i) {
        const int row = m * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (i / 4 * 8 / Shape::kRoundTokens != round) continue;
        store_shared(tile_ + sum_place(token - round * Shape::kRoundTokens, row), sums_[m][i]);
      }
    }
  }

 private:
  static constexpr int kTokens = Shape::kTokens;

  const uint32_t tile_;
  const uint64_t tile_operand_, x_operand_;
  TileX<Shape> x_;
  float sums_[2][kTokens / 2];
};

}  // namespace flashsparse::linear
