// SPDX-License-Identifier: Apache-2.0
// Dynamic shared memory of a block of the decode kernel of tiled_bitmap:
//   barriers   full and empty of each stage of x, and one for the initial fill of all stages; one
//              for each batch of copy descriptors; some for each warp, where its units arrive (the
//              room of one for each descriptor: launches were measured with it)
//   orders     the copy descriptors of each warp (weight_orders.cuh)
//   x          as in cuda/mma_units/linear_shared.h
//   weights    for each warp a ring of bytes, which holds units in their stored layout, and after
//              it, where units are spread, a scratch for those being multiplied
//   sums       accumulators that warps along the columns exchange, 8 tokens at a time,
//              double-buffered
//
// A unit in the scratch has rows of 256 bytes: a value line and its odd pairs (spread_items.cuh). A
// lane reads up to two words before the first item of its column and one past the last, so the
// scratch is that many lines longer than its rows. If ring or scratch is too small for a step, its
// units are multiplied from global memory. A ring of int8 values always has room for units without
// zeros.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "cuda/tiled_bitmap/operands.h"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

inline constexpr uint32_t kRowBytes = 2 * kLineBytes;  // a value line and its odd pairs
inline constexpr uint32_t kQuarterBytes = 4 * kRowBytes;
inline constexpr uint32_t kScratchHead = 2 * kLineBytes;  // before the first row
inline constexpr uint32_t kHeadBytes = kHeadLines * kLineBytes;

// Copy descriptors of a warp; descriptors in a batch; most steps whose copies are in flight.
inline constexpr int kOrders = 16, kBatch = 4, kBatches = kOrders / kBatch, kMostAhead = 8;
inline constexpr uint32_t kOrderBytes = 8;  // of a descriptor, for each unit
inline constexpr int kMostXStages = kOrders - kBatch;

// Lines past the end of a unit in a ring that lanes may read: spreading goes to the end of a
// quarter.
FS_HOST_DEVICE constexpr int lines_behind(bool spreads) { return spreads ? 4 : 2; }

// Scratch of a warp for each unit of a step.
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
