// SPDX-License-Identifier: Apache-2.0
// What the packed kernel is compiled for, and its arguments.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/mbarrier.cuh"
#include "common/wgmma_gathered.cuh"
#include "cuda/nm_gather/linear_shape.h"
#include "cuda/nm_gather/packed_plan.h"
#include "cuda/nm_gather/transpose_x.h"

namespace flashsparse::nm_gather {

inline constexpr int kPackingWarps = 4;  // each fills a stage of the ring at a time

template <int kTokens_,  // of a wgmma: 64, 128 or 256
          int kRows_,    // of a tile: 128, or 64 with different tokens for each warpgroup
          int kStages_>  // pairs of steps in the ring
struct PackedShape {
  static constexpr int kTokens = kTokens_, kRows = kRows_, kStages = kStages_;
  static constexpr int kConsumers = 2;  // warpgroups, of 64 rows each
  static constexpr int kTileTokens = kTokens * kConsumers * 64 / kRows;
  static constexpr int kThreads = (1 + kConsumers) * 128;
  static_assert(kStages >= kPackingWarps, "the warps that pack begin in stages of their own");
  // Registers of a producer thread and of a consumer thread: 65,536 at most in all.
  static constexpr int kPackRegisters = 56, kMultiplyRegisters = 224;
  static constexpr int kBatch = 4;  // pairs of weights that are loaded at once

  // A stage holds the rows of x for a pair's kept columns, one slab after the other.
  static constexpr int kSlabs = kTileTokens / kSlabColumns;
  static_assert(kSlabColumns == nm_gather::kTileTokens, "a row of x_tiles is one of a slab");
  static constexpr uint32_t kSlabBytes = kPair * kSlabRowBytes;
  static constexpr uint32_t kStageBytes = kSlabs * kSlabBytes;
  // Buffer for y on its way to memory: for each token a row with 64 rows of y. It is apart from the
  // ring, which is filled for the next tile meanwhile.
  static constexpr uint32_t kOut = kStages * kStageBytes;
  static constexpr uint32_t kOutBytes = kTokens * kSlabRowBytes;  // for a warpgroup
  static constexpr uint32_t kFull = kOut + kConsumers * kOutBytes;
  static constexpr uint32_t kEmpty = kFull + kStages * kMbarrierBytes;
  static constexpr uint32_t kSharedBytes = kEmpty + kStages * kMbarrierBytes;

  // Where a warpgroup's part of a tile, and of a stage, begins.
  FS_HOST_DEVICE static constexpr int first_row(int group) { return kRows == 64 ? 0 : group * 64; }
  FS_HOST_DEVICE static constexpr int first_token(int group) {
    return kRows == 64 ? group * kTokens : 0;
  }
  FS_HOST_DEVICE static constexpr uint32_t first_slab(int group) {
    return first_token(group) / kSlabColumns * kSlabBytes;
  }
};

// y [tokens, rows] = x times the transposed weight, plus bias [rows] or nothing, all of one 16-bit
// dtype, accumulated in fp32.
struct PackedArguments {
  const uint16_t* x_tiles;  // from transpose_x_kernel, 16-byte aligned
  int64_t x_tile_bytes;     // of 64 tokens
  int x_tile_count;
  const uint16_t* bias;  // or null
  uint16_t* y;           // 16-byte aligned
  int rows, units;       // of the weight
  int tokens;
  int row_tiles, token_tiles, band;  // of the plan
};

inline PackedArguments packed_arguments(const Layout& layout, int64_t rows, int64_t cols,
                                        int64_t tokens, const PackedPlan& plan) {
  PackedArguments a{};
  a.x_tile_bytes = x_tile_columns(layout, cols) * kSlabRowBytes;
  a.x_tile_count = static_cast<int>(x_tile_count(tokens));
  a.rows = static_cast<int>(rows);
  a.units = static_cast<int>(layout.units(rows));
  a.tokens = static_cast<int>(tokens);
  a.row_tiles = static_cast<int>(plan.row_tiles(rows));
  a.token_tiles = static_cast<int>(plan.token_tiles(tokens));
  a.band = std::min(plan.band, a.token_tiles);
  return a;
}

// Position of a tile: bands of token tiles follow each other, and in a band the tiles of a row
// tile.
struct PackedTile {
  int row, token;  // tiles

  __device__ __forceinline__ PackedTile(const PackedArguments& a, int number) {
    const int band_tiles = a.band * a.row_tiles, first = number / band_tiles * a.band;
    const int width = min(a.band, a.token_tiles - first), inside = number % band_tiles;
    row = inside / width;
    token = first + inside % width;
  }
};

}  // namespace flashsparse::nm_gather
