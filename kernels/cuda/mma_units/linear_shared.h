// SPDX-License-Identifier: Apache-2.0
// Dynamic shared memory of a block of the decode kernels:
//   barriers   full and empty of each stage of x, and one for the initial fill of all stages
//   x          a stage: column_warps units of columns; a unit: four panels of 64 columns, or two of
//              128 for 8-bit x; a panel: tokens of the shape x 128 bytes, whose 16-byte chunk c of
//              row r lies at c XOR (r mod 8): without bank conflicts for ldmatrix, and what wgmma
//              calls "128-byte swizzle"
//   weights    a ring for each warp, laid out by the format
//   sums       accumulators that warps along the columns exchange, 8 tokens at a time,
//              double-buffered
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/mma_units.h"

namespace flashsparse::mma_units {

inline constexpr int kSumsBytes = 512;  // accumulators of a warp for 16 rows and 8 tokens

struct Shared {
  uint32_t x, x_stage, weights, weight_ring, sums, sums_warp, bytes;

  static constexpr uint32_t kBarrier = 8;

  // `ring_bytes`: the weights of a warp; `x_bytes`: an element of x.
  FS_HOST_DEVICE constexpr Shared(int tokens, int row_units, int row_warps, int column_warps,
                                  int x_stages, uint32_t ring_bytes, int x_bytes)
      : x(align(kBarrier * (2 * x_stages + 1))),
        x_stage(column_warps * tokens * kUnitCols * x_bytes),
        weights(x + x_stages * x_stage),
        weight_ring(ring_bytes),
        sums(weights + row_warps * column_warps * weight_ring),
        sums_warp(column_warps > 1 ? 2 * row_units * kSumsBytes : 0),
        bytes(sums + row_warps * column_warps * sums_warp) {}

  static FS_HOST_DEVICE constexpr uint32_t align(uint32_t bytes) { return (bytes + 1023) & ~1023u; }
};

}  // namespace flashsparse::mma_units
