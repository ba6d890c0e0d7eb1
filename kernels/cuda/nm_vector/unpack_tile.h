// SPDX-License-Identifier: Apache-2.0
// How a weight is cut where nm_vector is unpacked on a GPU.
#pragma once
#include <algorithm>
#include <cstdint>

#include "formats/nm_vector.h"

namespace flashsparse::nm_vector {

inline constexpr int kUnpackThreads = 256;
inline constexpr int kUnpackRows = 16;           // of a tile, from one group or several
inline constexpr int kMostUnpackColumns = 2048;  // that a tile has

// How the columns of a weight are cut: into tiles of so many windows, of 512 columns or more where
// the weight has as many. They are a multiple of 8, so that a tile begins with a byte of the index
// and a vector of the weight.
struct UnpackTiles {
  int windows, across;

  static constexpr UnpackTiles of(const Pattern& pattern, int64_t cols) {
    const int64_t windows = 8 * std::max<int64_t>(128 / pattern.m, 1);
    const int64_t across = (pattern.windows(cols) + windows - 1) / windows;
    return {static_cast<int>(windows), static_cast<int>(across)};
  }
  constexpr int64_t count(int64_t rows) const {
    return (rows + kUnpackRows - 1) / kUnpackRows * across;
  }
};

}  // namespace flashsparse::nm_vector
