// SPDX-License-Identifier: Apache-2.0
// A unit of tiled_bitmap in the shared memory of a warp: as rows of the dense weight, from which
// each lane takes the pairs of neighbouring columns that are its own, and as columns of items.
#pragma once
#include "common/memory.cuh"
#include "cuda/lanes.cuh"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

inline constexpr int kChunk = sizeof(uint4) / sizeof(uint16_t);  // weights of 16 bytes
inline constexpr int kPairs = 4;   // of a chunk: lane 4 g + t has pair t of rows g and g + 8
inline constexpr int kHalves = 2;  // rows g and g + 8
// A row and 16 bytes more, so that the pairs of 8 rows lie in 32 different banks.
inline constexpr int kRowBytes = kUnitCols * sizeof(uint16_t) + sizeof(uint4);
inline constexpr int kStageBytes = kUnitRows * kRowBytes;

static_assert(kUnitCols == kLanes * kChunk, "a lane has one chunk of each row");
static_assert(kStageBytes >= kMostValueLines * kLineBytes, "the items fit in place of the rows");

// What a lane has of the dense unit. pairs[w][j][half] are the weights of row lane / 4 + 8 half, of
// which bits j + 16 half and j + 16 half + 8 of word w of the mask tell, the first in the lower
// half.
using Pairs = uint32_t[kMaskWords][kChunk][kHalves];

// Where unit number `unit` begins in the weight.
struct Corner {
  int64_t row, col;
};
__device__ __forceinline__ Corner corner_of(uint32_t unit, int64_t cols) {
  const uint32_t across = static_cast<uint32_t>(unit_cols(cols));
  return {static_cast<int64_t>(unit / across) * kUnitRows,
          static_cast<int64_t>(unit % across) * kUnitCols};
}

// Whether rows can be read and written 16 bytes at a time.
__device__ __forceinline__ bool whole_chunks(const uint16_t* weight, int64_t cols) {
  return cols % kChunk == 0 && reinterpret_cast<uintptr_t>(weight) % sizeof(uint4) == 0;
}

// Where a lane's pair of word w, bits j and j + 8 (half 0) or j + 16 and j + 24 (half 1), is.
__device__ __forceinline__ uint32_t pair_address(uint32_t stage, int lane, int w, int j, int half) {
  return stage + (lane / 4 + 8 * half) * kRowBytes + (w * kChunk + j) * sizeof(uint4) +
         lane % kPairs * sizeof(uint32_t);
}

// Walks down the items of a column.
struct ItemPlace {
  uint32_t address, step;  // to the next item: the upper half of this word, or the next line

  // `start` is as the format has it: 32 times the number of the item, plus the column.
  __device__ __forceinline__ ItemPlace(uint32_t values, uint32_t start) {
    const uint32_t item = start / kLineWords, upper = item % 2;
    address = values + item / 2 * kLineBytes + start % kLineWords * sizeof(uint32_t) + upper * 2;
    step = upper ? kLineBytes - 2 : 2;
  }
  __device__ __forceinline__ void next() {
    address += step;
    step ^= 2 ^ (kLineBytes - 2);
  }
};

// The items of the two runs of a lane.
__device__ __forceinline__ uint32_t run_length(const uint32_t (&masks)[kMaskWords], int run) {
  static_assert(kRunMasks == 2, "a run has two words of the mask");
  return __popc(masks[run * kRunMasks]) + __popc(masks[run * kRunMasks + 1]);
}

}  // namespace flashsparse::tiled_bitmap
