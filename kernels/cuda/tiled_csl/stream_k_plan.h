// SPDX-License-Identifier: Apache-2.0
// How the stream-K product of any packed format is cut: decided on the host from sizes alone, so
// that a CUDA graph can hold the decision. Which compiled shape runs is for the format to say.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "cuda/shared/gpu.h"

namespace flashsparse::linear {

// The weight is multiplied by dense tiles of this size.
inline constexpr int kTileRows = 128;
inline constexpr int kTileCols = 64;

FS_HOST_DEVICE constexpr int64_t tile_rows(int64_t out_features) {
  return (out_features + kTileRows - 1) / kTileRows;
}
FS_HOST_DEVICE constexpr int64_t tile_cols(int64_t in_features) {
  return (in_features + kTileCols - 1) / kTileCols;
}

// The same as the template arguments of Shape (linear_shape.h), for the host.
struct ShapeInfo {
  int tokens;          // of y at most
  bool hopper, wgmma;  // compiled for that architecture; by that instruction
  int team_warps;      // warps that share a tile
  int warps;           // of a block
  int blocks;          // of a multiprocessor

  constexpr int teams() const { return warps / team_warps; }
};

// Tiles of one block at most: what a tile source must know of each lies in shared memory.
inline constexpr int kMaxRange = 1024;

// Tiles of one launch at most, 8 billion weights: tiles * (blocks + 1) stays below 2^32 while a
// block has kMaxRange tiles or a multiprocessor a few blocks.
inline constexpr int64_t kMaxTiles = 1 << 20;

// Rows of tiles of one launch at most: each has an arrival counter.
inline constexpr int64_t kMaxTileRows = 4096;

// Whether the kernel can have a weight of this size.
constexpr bool fits_stream_k(int64_t rows, int64_t cols) {
  return tile_rows(rows) <= kMaxTileRows && tile_rows(rows) * tile_cols(cols) <= kMaxTiles;
}

// Tokens of one launch at most. (The registers of mma hold accumulators for no more than 32.)
constexpr int max_tokens(const Gpu& gpu) { return gpu.has_wgmma() ? 128 : 32; }

// Floats of the workspace `partials` of a launch: see stream_k.cuh.
constexpr int64_t partial_floats(const ShapeInfo& shape, int64_t blocks) {
  return blocks * (2 + shape.teams()) * shape.tokens * kTileRows;
}

// How many blocks share the tiles of a weight of that many rows and columns.
int plan_blocks(int64_t rows, int64_t cols, const ShapeInfo& shape, const Gpu& gpu);

}  // namespace flashsparse::linear
