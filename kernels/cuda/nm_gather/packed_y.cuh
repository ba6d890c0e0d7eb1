// SPDX-License-Identifier: Apache-2.0
// Stores a consumer warpgroup's tile of y, 64 rows: from accumulators of wgmma through shared
// memory, where a token is a row of 128 bytes, which 8 lanes write to memory at once.
#pragma once
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/warp.cuh"
#include "cuda/nm_gather/packed_shape.h"

namespace flashsparse::nm_gather {

template <class Type, class Shape>
class StoreY {
 public:
  // `group`: number of the consumer warpgroup, 0 or 1.
  __device__ __forceinline__ StoreY(const PackedArguments& a, uint32_t shared, int group)
      : a_(a), out_(shared + Shape::kOut + group * Shape::kOutBytes), group_(group) {}

  __device__ __forceinline__ void run(const float (&sums)[Shape::kTokens / 2],
                                      const PackedTile& tile) const {
    const int row = tile.row * Shape::kRows + Shape::first_row(group_);
    wait();  // until the previous tile has been read
    round(sums, row);
    wait();
    const int token = tile.token * Shape::kTileTokens + Shape::first_token(group_);
    if (a_.rows % 8 == 0) {
      write<true>(row, token);
    } else {
      write<false>(row, token);
    }
  }

 private:
  __device__ __forceinline__ void wait() const { sync_threads_of(1 + group_, 128); }

  // Adds the bias, rounds, and transposes, 16 rows of 16 tokens at a time.
  __device__ __forceinline__ void round(const float (&sums)[Shape::kTokens / 2], int row) const {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    float bias[2];
    FS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int own = row + warp * 16 + half * 8 + lane / 4;
      bias[half] = a_.bias && own < a_.rows ? to_float<Type>(a_.bias[own]) : 0.0f;
    }
    const uint32_t to = slab_place(out_, lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
    FS_UNROLL
    for (int i = 0; i < Shape::kTokens / 16; ++i) {
      uint32_t rounded[4];  // 8 rows and 8 tokens each
      FS_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float* const two = &sums[i * 8 + j * 2];
        rounded[j] = from_floats<Type>(two[0] + bias[j % 2], two[1] + bias[j % 2]);
      }
      store_transposed_x4(to + i * 16 * kSlabRowBytes, rounded);
    }
  }

  // Eight lanes write 64 rows of a token. `whole`: a row of y is a multiple of 8 long.
  template <bool whole>
  __device__ __forceinline__ void write(int row, int token) const {
    constexpr int kStep = 16;               // tokens of the warpgroup at once
    constexpr int kAtOnce = whole ? 8 : 1;  // tokens of a thread, in flight
    const int chunk = threadIdx.x % 8, first = threadIdx.x / 8 % kStep, own = row + chunk * 8;
    const int rows = a_.rows - own, tokens = a_.tokens - token - first;
    if (rows <= 0) return;
    uint16_t* to = a_.y + (int64_t{token + first} * a_.rows + own);
    const int64_t step = int64_t{kStep} * a_.rows;
    FS_NO_UNROLL
    for (int i = 0; i < Shape::kTokens && i < tokens; i += kAtOnce * kStep) {
      uint4 eight[kAtOnce];
      FS_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j * kStep < Shape::kTokens) {
          eight[j] = load_shared<uint4>(slab_place(out_, first + i + j * kStep, chunk));
        }
      }
      FS_UNROLL
      for (int j = 0; j < kAtOnce; ++j, to += step) {
        if (i + j * kStep < Shape::kTokens && i + j * kStep < tokens) {
          write<whole>(to, eight[j], rows);
        }
      }
    }
  }

  // Writes 8 rows, or as many as exist.
  template <bool whole>
  __device__ __forceinline__ void write(uint16_t* to, const uint4& eight, int rows) const {
    if constexpr (whole) {
      store_global(reinterpret_cast<uint4*>(to), eight);
    } else {
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
      FS_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (i < rows) store_global(to + i, static_cast<uint16_t>(words[i / 2] >> i % 2 * 16));
      }
    }
  }

  const PackedArguments& a_;
  const uint32_t out_;
  const int group_;
};

}  // namespace flashsparse::nm_gather
