// SPDX-License-Identifier: Apache-2.0
// How the dynamic shared memory of a block of the linear kernel of tiled_bitmap is laid out:
//   barriers   x_full and x_empty of each stage of x, one for the first x; one for each batch of
//              orders; one for each order of each warp, where its units arrive
//   orders     of each warp (weight_orders.cuh)
//   x          as in cuda/mma_units/linear_shared.h
//   weights    for each warp a ring of bytes, in which units lie as in memory, and, where units are
//              spread, behind it a scratch for those that are multiplied now
//   sums       where warps along the columns add up theirs, of 8 tokens at a time, in turns of two
//
// A unit in the scratch has rows of 256 bytes: a value line, and its odd items (spread_items.cuh).
// A lane reads up to two words before the first item of its column and one beyond the last: the
// scratch is so many lines longer than its rows. Units of a step that ring or scratch have no room
// for are multiplied as they lie in memory. A ring of codes has room for units without zeros.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "cuda/tiled_bitmap/operands.h"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

inline constexpr uint32_t kRowBytes = 2 * kLineBytes;  // of a value line and its odd items
inline constexpr uint32_t kQuarterBytes = 4 * kRowBytes;
inline constexpr uint32_t kScratchHead = 2 * kLineBytes;  // before the first row
inline constexpr uint32_t kHeadBytes = kHeadLines * kLineBytes;

// Orders of a warp at any time; how many are given at once; how many may be on their way.
inline constexpr int kOrders = 16, kBatch = 4, kBatches = kOrders / kBatch, kMostAhead = 8;
inline constexpr uint32_t kOrderBytes = 8;  // of a unit
inline constexpr int kMostXStages = kOrders - kBatch;

// Behind a unit in a ring, which lanes read: spreading goes to the end of a quarter.
FS_HOST_DEVICE constexpr int lines_behind(bool spreads) { return spreads ? 4 : 2; }

// Of a warp, for each unit of a step.
FS_HOST_DEVICE constexpr uint32_t scratch_bytes(uint32_t quarters) {
  return quarters == 0 ? 0 : kScratchHead + quarters * kQuarterBytes + kLineBytes;
}

struct Shared {
  uint32_t batches, arrivals, orders, warp_orders, x, x_stage, weights, warp_weights, sums,
      sums_warp, bytes;

  FS_HOST_DEVICE constexpr Shared(int tokens, int row_units, int row_warps, int column_warps,
                                  int scratch_quarters, int x_stages, uint32_t ring_bytes,
                                  Operands operands)
      : batches(8 * (2 * x_stages + 1)),
        arrivals(batches + 8 * kBatches),
        orders((arrivals + row_warps * column_warps * kOrders * 8 + 15) & ~15u),
        warp_orders(kOrders * row_units * kOrderBytes),
        x((orders + row_warps * column_warps * warp_orders + 1023) & ~1023u),
        x_stage(column_warps * tokens * kUnitCols * x_bytes(operands)),
        weights(x + x_stages * x_stage),
        warp_weights(ring_bytes + row_units * scratch_bytes(scratch_quarters)),
        sums(weights + row_warps * column_warps * warp_weights),
        sums_warp(column_warps > 1 ? 2 * row_units * 512 : 0),
        bytes(sums + row_warps * column_warps * sums_warp) {}
};

}  // namespace flashsparse::tiled_bitmap
