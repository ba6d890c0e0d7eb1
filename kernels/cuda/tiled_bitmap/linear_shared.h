// SPDX-License-Identifier: Apache-2.0
// How the dynamic shared memory of a block of the linear kernel of tiled_bitmap is laid out:
//   barriers   x_full and x_empty of each stage of x, one for the first x, one for each stage of
//              each warp's weights
//   x          as in cuda/mma_units/linear_shared.h
//   weights    a ring of bytes for each warp, in which each unit lies in one piece
//   sums       where warps along the columns add up theirs, of 8 tokens at a time, in turns of two
//
// A unit in the ring: its value lines, four to a quarter, each followed by the 128 bytes that the
// odd items of it will take (odd_items.cuh); then masks and starts. A lane reads one word beyond
// the last item of its column, which so is one of the unit's own. A unit too full for that, of
// which the ring would not hold as many as a step takes, has its value lines without gaps, and is
// multiplied slowly.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

inline constexpr uint32_t kRowBytes = 2 * kLineBytes;  // of a value line and its odd items
inline constexpr uint32_t kQuarterBytes = 4 * kRowBytes;
inline constexpr uint32_t kHeadBytes = kHeadLines * kLineBytes;

inline constexpr int kMostStages = 32;  // of a ring: a lane of the warp knows of each

// Of a unit in the ring, by its value lines rounded up to quarters.
FS_HOST_DEVICE constexpr uint32_t place_bytes(uint32_t quarters) {
  return quarters * kQuarterBytes + kHeadBytes;
}

// Least of a ring, for a unit without zeros.
inline constexpr uint32_t kLeastRingBytes = kMostLines * kLineBytes;

struct Shared {
  uint32_t x, x_stage, weights, sums, sums_warp, bytes;

  FS_HOST_DEVICE constexpr Shared(int tokens, int row_units, int row_warps, int column_warps,
                                  int weight_stages, int x_stages, uint32_t ring_bytes)
      : x((8 * (2 * x_stages + 1 + row_warps * column_warps * weight_stages) + 1023) & ~1023u),
        x_stage(column_warps * tokens * kUnitCols * 2),
        weights(x + x_stages * x_stage),
        sums(weights + row_warps * column_warps * ring_bytes),
        sums_warp(column_warps > 1 ? 2 * row_units * 512 : 0),
        bytes(sums + row_warps * column_warps * sums_warp) {}
};

}  // namespace flashsparse::tiled_bitmap
