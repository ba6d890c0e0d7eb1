// SPDX-License-Identifier: Apache-2.0
// Grids with a warp for each unit of a tiled_bitmap weight.
#pragma once
#include <cstdint>

#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

// Whether the units of a weight can be numbered by an int32.
inline bool can_number_units(int64_t rows, int64_t cols) {
  return rows >= 1 && cols >= 1 && unit_rows(rows) <= INT32_MAX / unit_cols(cols);
}

inline uint32_t blocks_of(int64_t rows, int64_t cols, int block_units) {
  return static_cast<uint32_t>((units(rows, cols) + block_units - 1) / block_units);
}

}  // namespace flashsparse::tiled_bitmap
