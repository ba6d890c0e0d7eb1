// SPDX-License-Identifier: Apache-2.0
// Multiplying a tile by x with mma, the tensor core instruction of every architecture since Ampere.
#pragma once
#include "cuda/tiled_csl_linear.cuh"

namespace flashsparse::tiled_csl {

template <class Type_, class Shape>
class MmaMultiplier {
 public:
  using Type = Type_;

  __device__ __forceinline__ MmaMultiplier(const LinearArguments& a, uint32_t tile, uint32_t)
      : a_(a),
        tile_(tile),
        lane_(threadIdx.x % 32),
        team_warp_(threadIdx.x / 32 % Shape::kTeamWarps),
        x_place_(lane_ / 4 * a.x_stride + lane_ % 4 * 16) {}

  __device__ __forceinline__ void clear() {
    FS_UNROLL
    for (int b = 0; b < kRowBlocks; ++b) {
      FS_UNROLL
      for (int f = 0; f < kFragments; ++f) {
        FS_UNROLL
        for (int i = 0; i < 4; ++i) sums_[b][f][i] = 0;
      }
    }
  }

  // W is mma's B operand, 8 rows of it at a time, and x its A operand: so the 16 bytes that a lane
  // loads of a row of W are the operands of two mma as they come. The columns of a tile may be in
  // any order as long as W and x agree: lane t of a group of four takes the 16-byte chunks 2t and
  // 2t + 1 of a row, of W from shared memory (swizzled: no two of eight lanes in one bank), of x
  // straight from global memory.

  // Starts the loads of x for the next tile; rows of x are zero up to a multiple of 64 columns.
  __device__ __forceinline__ void load_x(int column) {
    const uint16_t* const chunks = a_.x + column * kTileCols;
    FS_UNROLL
    for (int f = 0; f < kFragments; ++f) {
      FS_UNROLL
      for (int half = 0; half < 2; ++half) {
        if (!has_token(f, half)) continue;
        const uint16_t* const mine = chunks + (x_place_ + (16 * f + 8 * half) * a_.x_stride);
        FS_UNROLL
        for (int h = 0; h < 2; ++h) {
          x_[f][half][h] = load_readonly(reinterpret_cast<const uint4*>(mine) + h);
        }
      }
    }
  }
  __device__ __forceinline__ void multiply() {
    // mma wants its four registers of A side by side. A real instruction puts them there, once: of
    // moves the compiler would make one for every use.
    uint32_t x[kFragments][2][2][4];  // of [half of the columns][mma step]
    FS_UNROLL
    for (int f = 0; f < kFragments; ++f) {
      FS_UNROLL
      for (int half = 0; half < 2; ++half) {
        FS_UNROLL
        for (int h = 0; h < 2; ++h) {
          const uint4& chunk = x_[f][half][h];
          x[f][h][0][half] = has_token(f, half) ? chunk.x : 0;
          x[f][h][0][half + 2] = has_token(f, half) ? chunk.y : 0;
          x[f][h][1][half] = has_token(f, half) ? chunk.z : 0;
          x[f][h][1][half + 2] = has_token(f, half) ? chunk.w : 0;
        }
      }
    }

    const int row = lane_ / 4;  // of 8: also the row's swizzle
    const uint32_t first = tile_ + (team_warp_ * kRowBlocks * 8 + row) * kTileCols * 2;
    constexpr int kSteps = 2 * kRowBlocks / kAtOnce;
    uint4 w[2][kAtOnce];  // of this step and of the next
    const auto load = [&](int step) {
      const uint32_t chunk = first + ((lane_ % 4 * 2 + step % 2) ^ row) * 16;
      FS_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        w[step % 2][i] = load_shared<uint4>(chunk + (step / 2 * kAtOnce + i) * 8 * kTileCols * 2);
      }
    };
    load(0);
    FS_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) load(step + 1);
      const int h = step % 2, block = step / 2 * kAtOnce;
      FS_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        FS_UNROLL
        for (int f = 0; f < kFragments; ++f) {
          mma_m16n8k16<Type>(sums_[block + i][f], x[f][h][0], w[h][i].x, w[h][i].y);
        }
      }
      FS_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        FS_UNROLL
        for (int f = 0; f < kFragments; ++f) {
          mma_m16n8k16<Type>(sums_[block + i][f], x[f][h][1], w[h][i].z, w[h][i].w);
        }
      }
    }
  }

  __device__ __forceinline__ void x_is_there() {}
  __device__ __forceinline__ void wait() {}

  // Leaves the sums of a round's tokens in the team's buffer.
  __device__ __forceinline__ void store_sums(int round) {
    constexpr int kOfRound = (Shape::kRoundTokens + 15) / 16;
    FS_UNROLL
    for (int b = 0; b < kRowBlocks; ++b) {
      FS_UNROLL
      for (int f = 0; f < kFragments; ++f) {
        if (f / kOfRound != round) continue;
        FS_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int token = 16 * (f % kOfRound) + 8 * half + lane_ / 4;
          const int row = (team_warp_ * kRowBlocks + b) * 8 + lane_ % 4 * 2;
          if (8 * half < Shape::kTokens) {
            store_shared(tile_ + sum_place(token, row),
                         make_float2(sums_[b][f][2 * half], sums_[b][f][2 * half + 1]));
          }
        }
      }
    }
  }

 private:
  static constexpr int kFragments = (Shape::kTokens + 15) / 16;         // of 16 tokens
  static constexpr int kRowBlocks = kTileRows / 8 / Shape::kTeamWarps;  // of 8 rows, of a warp
  // Row blocks multiplied at once: enough sums that no mma waits for the one before it.
  static constexpr int kAtOnce = kFragments < 2 ? 2 : 1;

  __device__ __forceinline__ bool has_token(int f, int half) const {
    return 16 * f + 8 * half + lane_ / 4 < a_.tokens;
  }

  const LinearArguments& a_;
  const uint32_t tile_;
  const int lane_, team_warp_;
  const int x_place_;               // of the lane's first chunk in a tile's columns of x
  uint4 x_[kFragments][2][2] = {};  // of the next tile: [half of the tokens][chunk]
  float sums_[kRowBlocks][kFragments][4];
};

}  // namespace flashsparse::tiled_csl
