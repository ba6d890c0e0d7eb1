// SPDX-License-Identifier: Apache-2.0
// Multiplying a tile by x with Hopper's wgmma: a team is a warpgroup, and the tensor core reads the
// tile and x from shared memory itself. A Tiled-CSL tile is swizzled just as it wants.
#pragma once
#include "common/wgmma.cuh"
#include "cuda/tiled_csl_linear.cuh"

namespace flashsparse::tiled_csl {

template <class Type_, class Shape>
class WgmmaMultiplier {
 public:
  using Type = Type_;

  // `x` is room for the team's x of two tiles, by turns.
  __device__ __forceinline__ WgmmaMultiplier(const LinearArguments& a, uint32_t tile, uint32_t x)
      : a_(a),
        tile_(tile),
        thread_(threadIdx.x % 128),
        token_(once(thread_ / 8)),
        x_place_(once(x + token_ * 128 + (thread_ % 8 ^ token_ % 8) * 16)),
        x_offset_(once(token_ * a.x_stride + thread_ % 8 * 8)),
        tile_operand_(wgmma_operand(tile)),
        x_operand_(wgmma_operand(x)) {}

  __device__ __forceinline__ void clear() {
    FS_UNROLL
    for (int m = 0; m < 2; ++m) {
      FS_UNROLL
      for (int i = 0; i < kTokens / 2; ++i) sums_[m][i] = 0;
    }
  }

  // Starts the copies of x of the next tile, a row of 128 bytes a token, zero past the last token.
  __device__ __forceinline__ void load_x(int column) {
    turn_ ^= 1;
    const uint32_t to = x_place_ + turn_ * Shape::kXBytes;
    const uint16_t* const from = a_.x + (column * kTileCols + x_offset_);
    FS_UNROLL
    for (int i = 0; i < kTokens; i += 16) {  // the warpgroup's threads are 16 tokens of 8 chunks
      if (kTokens % 16 == 0 || token_ < kTokens) {
        const bool there = token_ + i < a_.tokens;
        copy_async<16>(to + i * 128, there ? from + i * a_.x_stride : a_.x, there);
      }
    }
    copy_async_commit();
  }

  // Before the barrier that makes the tile and x everyone's.
  __device__ __forceinline__ void x_is_there() {
    copy_async_wait<0>();
    fence_for_wgmma();
  }

  __device__ __forceinline__ void multiply() {
    const uint64_t x = wgmma_moved(x_operand_, turn_ * Shape::kXBytes);
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

  // Leaves the sums of a round's tokens in the team's buffer.
  __device__ __forceinline__ void store_sums(int round) {
    const int lane = threadIdx.x % 32, warp = thread_ / 32;
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

  const LinearArguments& a_;
  // The value itself, by a way that the compiler does not see through: what is worked out once
  // stays in a register instead of being worked out again for every tile.
  template <class T>
  static __device__ __forceinline__ T once(T value) {
    return __shfl_sync(~0u, value, threadIdx.x % 32);
  }

  const uint32_t tile_;
  const int thread_;        // of the warpgroup
  const int token_;         // whose x it copies, and of the 16th token from there and so on
  const uint32_t x_place_;  // to where,
  const int x_offset_;      // from where
  const uint64_t tile_operand_, x_operand_;
  uint32_t turn_ = 0;  // which half of x_ is the next tile's
  float sums_[2][kTokens / 2];
};

}  // namespace flashsparse::tiled_csl
