// SPDX-License-Identifier: Apache-2.0
// How the dynamic shared memory of a block is laid out that multiplies a few tokens:
//   barriers   x_full and x_empty of each stage of x, one for the first x, one for each stage of
//              each warp's weights
//   x          a stage: column_warps units of columns; a unit: four panels of 64 columns, or two of
//              128 where x is codes of 8 bits; a panel: tokens of the shape x 128 bytes, whose
//              16-byte chunk c of row r lies at c XOR (r mod 8): what ldmatrix reads without bank
//              conflicts, and wgmma calls "128-byte swizzle"
//   weights    a ring for each warp, in which the format says what lies where
//   sums       where warps along the columns add up theirs, of 8 tokens at a time, in turns of two
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/mma_units.h"

namespace flashsparse::mma_units {

inline constexpr int kSumsBytes = 512;  // of a warp, for 16 rows and 8 tokens

struct Shared {
  uint32_t x, x_stage, weights, weight_ring, sums, sums_warp, bytes;

  static constexpr uint32_t kBarrier = 8;

  // `ring_bytes` of a warp's weights, `x_bytes` of an element of x.
  FS_HOST_DEVICE constexpr Shared(int tokens, int row_units, int row_warps, int column_warps,
                                  int weight_stages, int x_stages, uint32_t ring_bytes, int x_bytes)
      : x(align(kBarrier * (2 * x_stages + 1 + row_warps * column_warps * weight_stages))),
        x_stage(column_warps * tokens * kUnitCols * x_bytes),
        weights(x + x_stages * x_stage),
        weight_ring(ring_bytes),
        sums(weights + row_warps * column_warps * weight_ring),
        sums_warp(column_warps > 1 ? 2 * row_units * kSumsBytes : 0),
        bytes(sums + row_warps * column_warps * sums_warp) {}

  static FS_HOST_DEVICE constexpr uint32_t align(uint32_t bytes) { return (bytes + 1023) & ~1023u; }
};

}  // namespace flashsparse::mma_units
