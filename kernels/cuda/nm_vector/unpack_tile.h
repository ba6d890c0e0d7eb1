// SPDX-License-Identifier: Apache-2.0
// How a weight is divided when it is unpacked on a GPU.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cuda/nm_vector/extent.h"
#include "formats/nm_vector.h"

namespace flashsparse::nm_vector {

inline constexpr int kUnpackThreads = 128;
inline constexpr int kUnpackRows = 8;        // of a tile, of one group or several
inline constexpr int kUnpackColumns = 1024;  // of a tile, approximately

// Divides the columns of a weight into tiles of `windows` windows. They begin at a byte of the
// index and, if the width of windows permits, at a 16-byte vector of the weight.
struct UnpackTiles {
  int windows, across;

  static constexpr UnpackTiles of(const Pattern& pattern, int64_t cols) {
    // Eight windows end at a byte and at a vector; so does one of more than 128 columns.
    int64_t least = 1;
    const auto ends = [&] {
      return least * pattern.n * pattern.index_bits() % 8 == 0 && least * pattern.m % 8 == 0;
    };
    while (!ends() && 2 * least * pattern.m <= kUnpackColumns) least *= 2;
    const int64_t windows = least * std::max<int64_t>(kUnpackColumns / (least * pattern.m), 1);
    const int64_t across = (pattern.windows(cols) + windows - 1) / windows;
    return {static_cast<int>(windows), static_cast<int>(across)};
  }
  constexpr int64_t count(int64_t rows) const {
    return (rows + kUnpackRows - 1) / kUnpackRows * across;
  }
  // For a warp's row.
  FS_HOST_DEVICE constexpr int row_bytes(const Extent& extent, int value_bytes) const {
    return (windows * extent.m * value_bytes + 15) / 16 * 16;
  }
  // Below 48 KB.
  constexpr int shared_bytes(const Extent& extent, int value_bytes) const {
    const int groups = std::max(kUnpackRows >> extent.length_shift, 1);
    const int places = groups * windows * extent.n * static_cast<int>(sizeof(uint16_t));
    return kUnpackThreads / 32 * row_bytes(extent, value_bytes) + places;
  }
};

}  // namespace flashsparse::nm_vector
