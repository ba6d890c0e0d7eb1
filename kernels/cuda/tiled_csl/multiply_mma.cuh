// SPDX-License-Identifier: Apache-2.0
// Multiplies a tile by x with mma, the tensor core instruction of every architecture since Ampere.
// W is its A operand, 16 rows at a time, and x its B operand, so that 8 tokens are not padded to
// 16.
#pragma once
#include "common/mma.cuh"
#include "cuda/tiled_csl/team.cuh"
#include "cuda/tiled_csl/tile_x.cuh"

namespace flashsparse::linear {

template <class Type_, class Shape>
class MmaMultiplier {
 public:
  using Type = Type_;

  __device__ __forceinline__ MmaMultiplier(const Arguments& a, uint32_t tile, uint32_t x)
      : tile_(tile),
        warp_(__shfl_sync(~0u, static_cast<int>(threadIdx.x / 32 % Shape::kTeamWarps), 0)),
        x_(a, x) {
    const int lane = threadIdx.x % 32, swizzle = lane % 8;
    const int row = warp_ * kRowBlocks * 16 + lane % 16;
    tile_rows_ = tile + row * kRowBytes + ((lane / 16) ^ swizzle) * 16;
    x_rows_ = x + swizzle * kRowBytes + ((lane / 8) ^ swizzle) * 16;
  }

  __device__ __forceinline__ void clear() {
    FS_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      FS_UNROLL
      for (int n = 0; n < kTokenBlocks; ++n) {
        FS_UNROLL
        for (int i = 0; i < 4; ++i) sums_[m][n][i] = 0;
      }
    }
  }

  __device__ __forceinline__ void load_x(int column) { x_.load(column); }
  __device__ __forceinline__ void wait_x() { x_.wait(); }

  __device__ __forceinline__ void multiply() {
    constexpr int kSteps = kTileCols / 16;
    uint32_t w[2][kRowBlocks][4];    // of this step and the next
    uint32_t x[2][kTokenBlocks][4];  // of two steps
    load_x_operands(x[0], 0);
    load_w_operands(w[0], 0);
    FS_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      if (step % 2 && step + 1 < kSteps) load_x_operands(x[(step + 1) / 2 % 2], step + 1);
      if (step + 1 < kSteps) load_w_operands(w[(step + 1) % 2], step + 1);
      FS_UNROLL
      for (int m = 0; m < kRowBlocks; ++m) {
        FS_UNROLL
        for (int n = 0; n < kTokenBlocks; ++n) {
          const uint32_t (&x_of)[4] = x[step / 2 % 2][n];
          mma_m16n8k16<Type>(sums_[m][n], w[step % 2][m], x_of[step % 2 * 2],
                             x_of[step % 2 * 2 + 1]);
        }
      }
    }
  }
  __device__ __forceinline__ void wait() {}

  // Stores the accumulators of a round's tokens to the team's tile.
  __device__ __forceinline__ void store_sums(int round) {
    const int lane = threadIdx.x % 32;
    FS_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      FS_UNROLL
      for (int n = 0; n < kTokenBlocks; ++n) {
        if (n * 8 / Shape::kRoundTokens != round) continue;
        FS_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = (warp_ * kRowBlocks + m) * 16 + lane / 4 + i / 2 * 8;
          const int token = n * 8 % Shape::kRoundTokens + lane % 4 * 2 + i % 2;
          store_shared(tile_ + sum_place(token, row), sums_[m][n][i]);
        }
      }
    }
  }

 private:
  static constexpr int kRowBytes = kTileCols * sizeof(uint16_t);
  static constexpr int kRowBlocks = kTileRows / 16 / Shape::kTeamWarps;  // of 16 rows, for a warp
  static constexpr int kTokenBlocks = Shape::kTokens / 8;

  // Chunk c of a row lies at c XOR swizzle, so another c flips bits of the address.
  __device__ __forceinline__ void load_w_operands(uint32_t (&w)[kRowBlocks][4], int step) {
    FS_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      ldmatrix_x4(w[m], (tile_rows_ ^ (step * 32)) + m * 16 * kRowBytes);
    }
  }
  // Loads four chunks: those of this step and of the next one.
  __device__ __forceinline__ void load_x_operands(uint32_t (&x)[kTokenBlocks][4], int step) {
    FS_UNROLL
    for (int n = 0; n < kTokenBlocks; ++n) {
      ldmatrix_x4(x[n], (x_rows_ ^ (step * 32)) + x_.offset() + n * 8 * kRowBytes);
    }
  }

  const uint32_t tile_;
  const int warp_;               // in the team
  uint32_t tile_rows_, x_rows_;  // whose addresses this lane gives to ldmatrix
  TileX<Shape> x_;
  float sums_[kRowBlocks][kTokenBlocks][4];
};

}  // namespace flashsparse::linear
