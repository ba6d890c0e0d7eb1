// SPDX-License-Identifier: Apache-2.0
// A unit of tiled_bitmap in a warp's shared memory: as rows of the dense weight, of which each lane
// has pairs of adjacent columns, and as columns of items.
#pragma once
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/shared/lanes.cuh"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

inline constexpr int kChunk = sizeof(uint4) / sizeof(uint16_t);  // weights in 16 bytes
inline constexpr int kPairs = 4;   // in a chunk: lane 4 g + t has pair t of rows g and g + 8
inline constexpr int kHalves = 2;  // rows g and g + 8
// Rows are padded by 16 bytes, so that the pairs of 8 rows lie in 32 different banks.
inline constexpr int kRowBytes = kUnitCols * sizeof(uint16_t) + sizeof(uint4);
inline constexpr int kStageBytes = kUnitRows * kRowBytes;

static_assert(kUnitCols == kLanes * kChunk, "a lane has one chunk of each row");
static_assert(kStageBytes >= kMostValueLines * kLineBytes, "the items fit in place of the rows");

// Native 16-bit values.
struct ValueItems {
  using Item = uint16_t;
  static constexpr bool kHasScales = false;

  static __device__ __forceinline__ Item item_of(uint16_t weight) { return weight; }
  static __device__ __forceinline__ uint16_t weight_of(Item item, float) { return item; }
};

// Int8 values: a weight of Type divided by the scale of its row.
template <class Type>
struct CodeItems {
  using Item = uint8_t;
  static constexpr bool kHasScales = true;

  static __device__ __forceinline__ Item item_of(uint16_t code) {
    return static_cast<Item>(static_cast<int>(to_float<Type>(code)) + kCodeZero);
  }
  static __device__ __forceinline__ uint16_t weight_of(Item item, float scale) {
    return from_float<Type>(static_cast<float>(int{item} - kCodeZero) * scale);
  }
};

template <class Items>
inline constexpr int kItemsOfWord = items_of_word(sizeof(typename Items::Item));

// A lane's part of the dense unit: pairs[w][j][half] are two weights of row lane / 4 + 8 half,
// those of mask bits j + 16 half (lower half) and j + 16 half + 8 of word w.
using Pairs = uint32_t[kMaskWords][kChunk][kHalves];

// Row and column of the weight at which unit number `unit` begins.
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

// Shared address of a lane's pair: word w, bits j and j + 8 (half 0) or j + 16 and j + 24 (half 1).
__device__ __forceinline__ uint32_t pair_address(uint32_t stage, int lane, int w, int j, int half) {
  return stage + (lane / 4 + 8 * half) * kRowBytes + (w * kChunk + j) * sizeof(uint4) +
         lane % kPairs * sizeof(uint32_t);
}

// Walks down the items of a column, `in_word` items per word.
template <int in_word>
struct ItemPlace {
  static constexpr uint32_t kBytes = sizeof(uint32_t) / in_word;
  static constexpr uint32_t kNextLine = kLineBytes - sizeof(uint32_t) + kBytes;
  uint32_t address;
  uint32_t step;  // to the next item: in this word, or in the next line

  // `start` in the format's encoding: 32 times the number of the item, plus the column.
  __device__ __forceinline__ ItemPlace(uint32_t values, uint32_t start) {
    const uint32_t item = start / kLineWords;
    address = values + item / in_word * kLineBytes + start % kLineWords * sizeof(uint32_t) +
              item % in_word * kBytes;
    step = item % in_word == in_word - 1 ? kNextLine : kBytes;
  }
  __device__ __forceinline__ void next() {
    address += step;
    if constexpr (in_word == 2) {
      step ^= kBytes ^ kNextLine;
    } else {
      step = address % in_word == in_word - 1 ? kNextLine : kBytes;
    }
  }
};

// Items of a lane's run.
__device__ __forceinline__ uint32_t run_length(const uint32_t (&masks)[kMaskWords], int run) {
  static_assert(kRunMasks == 2, "a run has two words of the mask");
  return __popc(masks[run * kRunMasks]) + __popc(masks[run * kRunMasks + 1]);
}

}  // namespace flashsparse::tiled_bitmap
