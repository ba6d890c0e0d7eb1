// SPDX-License-Identifier: Apache-2.0
// What the prefill kernel on mma is compiled for, and its arguments.
#pragma once
#include <cstdint>

#include "common/device.cuh"
#include "cuda/nm_gather/linear_shape.h"
#include "cuda/nm_gather/tiles_plan.h"

namespace flashsparse::nm_gather {

template <int kRows,         // of a warp: they share an index, so one gather serves them
          int kWarpTokens_,  // of a warp: 32, 64 or 128
          int kTokenWarps_,  // warps that share rows, and the weights in shared memory
          int kRowWarps,     // row_warps at most
          ValueType kValues_ = ValueType::kNative>
struct TileShape {
  static constexpr ValueType kValues = kValues_;
  static constexpr int kWarpTokens = kWarpTokens_, kTokenWarps = kTokenWarps_;
  static constexpr int kTokens = kWarpTokens * kTokenWarps;                      // of a block
  static constexpr int kTokenTiles = (kTokens + kTileTokens - 1) / kTileTokens;  // of x_tiles
  static constexpr int kThreads = (kRowWarps * kTokenWarps + kCopyingWarps) * 32;
  static constexpr int kPlanes = kWarpTokens / 8;  // of x: 8 tokens each
  static constexpr int kTiles = kRows / 16;        // of mma
  static constexpr int kUnitTiles = kTiles < 2 ? 1 : 2;
  static constexpr int kUnits = kTiles / kUnitTiles;  // of the layout, of a warp
  // Bytes of a unit: for a lane and step, for a pair of steps, and with scales of groups.
  static constexpr uint32_t kLaneBytes = kUnitTiles * bits_of(kValues);
  static constexpr uint32_t kValueBytes = 2 * 32 * kLaneBytes;
  static constexpr uint32_t kUnitBytes = kValueBytes + group_scale_bytes(kValues);
  // For partial sums in shared memory (add_sums.cuh).
  static constexpr int kUnitRows = kRows;
  static constexpr int kSumStride = kUnitRows + 4;
  static constexpr uint32_t kYBytes = 8 * kSumStride * sizeof(float);  // of a warp (tiles_y.cuh)
};

// y [tokens, rows] = x [tokens, cols] times the transposed weight, plus bias [rows] or nothing, all
// of one 16-bit dtype, accumulated in fp32.
struct TileArguments {
  const uint16_t* x_tiles;  // from transpose_x
  int x_columns;            // of x_tiles
  const float* x_scales;    // [tokens] if x holds quantized values, else null
  const uint16_t* bias;     // or null
  uint16_t* y;              // 8-byte aligned
  float* partials;     // workspace: TilesPlan::partial_floats() of any content, 16-byte aligned
  uint32_t* arrivals;  // TilesPlan::arrivals() counters, all zero before and after
  int rows, tokens;
  int units;                                             // of rows
  int row_warps, splits, x_stages, weight_stages, band;  // of the plan
  bool split_cluster;  // whether splits are a cluster, which adds up in shared memory
  int row_blocks, token_blocks;
  uint32_t x_tile_bytes;  // of a stage, for 64 tokens
  uint32_t weight_stage_bytes;
};

}  // namespace flashsparse::nm_gather
