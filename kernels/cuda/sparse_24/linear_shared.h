// SPDX-License-Identifier: Apache-2.0
// How the dynamic shared memory of a block of the linear kernel of sparse_24 is laid out:
//   barriers   x_full and x_empty of each stage of x, one for the first x, one for each stage of
//              each warp's weights
//   x          a stage: column_warps units of columns; a unit: four panels of 64 columns; a panel:
//              tokens of the shape x 128 bytes, whose 16-byte chunk c of row r lies at c XOR (r mod
//              8): what ldmatrix reads without bank conflicts, and wgmma calls "128-byte swizzle"
//   weights    a ring for each warp; a stage: row_units units, as they are in global memory, each
//              from a whole line of 128 bytes on, to which copies are faster
//   sums       where warps along the columns add up theirs, of 8 tokens at a time, in turns of two
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// Bytes from one unit of a stage to the next.
FS_HOST_DEVICE constexpr uint32_t place_bytes(UnitLayout unit) {
  return (unit.bytes() + 127) & ~127u;
}

struct Shared {
  uint32_t x, x_stage, weights, weight_ring, sums, sums_warp, bytes;

  static constexpr uint32_t kBarrier = 8;

  FS_HOST_DEVICE constexpr Shared(UnitLayout unit, int tokens, int row_units, int row_warps,
                                  int column_warps, int weight_stages, int x_stages)
      : x(align(kBarrier * (2 * x_stages + 1 + row_warps * column_warps * weight_stages))),
        x_stage(column_warps * tokens * kUnitCols * 2),
        weights(x + x_stages * x_stage),
        weight_ring(weight_stages * row_units * place_bytes(unit)),
        sums(weights + row_warps * column_warps * weight_ring),
        sums_warp(column_warps > 1 ? 2 * row_units * kVectorBytes : 0),
        bytes(sums + row_warps * column_warps * sums_warp) {}

  static FS_HOST_DEVICE constexpr uint32_t align(uint32_t bytes) { return (bytes + 1023) & ~1023u; }
};

}  // namespace flashsparse::sparse_24
