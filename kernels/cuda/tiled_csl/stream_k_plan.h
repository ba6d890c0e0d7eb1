// SPDX-License-Identifier: Apache-2.0
// How Tiled-CSL's stream-K product divides its tiles: decided on the host from sizes alone, so that
// a CUDA graph can hold the decision. linear_plan.h chooses the compiled shape.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "cuda/shared/gpu.h"

namespace flashsparse::linear {

// The size of the weight's dense tiles.
inline constexpr int kTileRows = 128;
inline constexpr int kTileCols = 64;

FS_HOST_DEVICE constexpr int64_t tile_rows(int64_t out_features) {
  return (out_features + kTileRows - 1) / kTileRows;
}
FS_HOST_DEVICE constexpr int64_t tile_cols(int64_t in_features) {
  return (in_features + kTileCols - 1) / kTileCols;
}

// The host's counterpart of the template arguments of Shape (linear_shape.h).
struct ShapeInfo {
  int tokens;          // of y at most
  bool hopper, wgmma;  // compiled for that architecture; with that instruction
  int team_warps;      // warps that share a tile
  int warps;           // per block
  int blocks;          // per SM

  constexpr int teams() const { return warps / team_warps; }
};

// Most tiles of one block: the tile source keeps a record of each in shared memory.
inline constexpr int kMaxRange = 1024;

// Most tiles of one launch, 8 billion weights: tiles * (blocks + 1) stays below 2^32 as long as a
// block has kMaxRange tiles or an SM a few blocks.
inline constexpr int64_t kMaxTiles = 1 << 20;

// Most rows of tiles of one launch: an arrival counter each.
inline constexpr int64_t kMaxTileRows = 4096;

// Whether the kernel can multiply a weight of this size.
constexpr bool fits_stream_k(int64_t rows, int64_t cols) {
  return tile_rows(rows) <= kMaxTileRows && tile_rows(rows) * tile_cols(cols) <= kMaxTiles;
}

// Most tokens of one launch. (With mma, accumulators of no more than 32 fit in registers.)
constexpr int max_tokens(const Gpu& gpu) { return gpu.has_wgmma() ? 128 : 32; }

// Floats of the workspace `partials` of a launch: see stream_k.cuh.
constexpr int64_t partial_floats(const ShapeInfo& shape, int64_t blocks) {
  return blocks * (2 + shape.teams()) * shape.tokens * kTileRows;
}

// Blocks that share the tiles of a weight of so many rows and columns.
int plan_blocks(int64_t rows, int64_t cols, const ShapeInfo& shape, const Gpu& gpu);

}  // namespace flashsparse::linear
