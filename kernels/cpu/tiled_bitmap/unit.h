// SPDX-License-Identifier: Apache-2.0
// The units of a weight: their position, and the content of their heads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cpu/tiled_bitmap/kernels.h"
#include "cpu/tiled_bitmap/tiled_bitmap.h"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

struct Unit {  // the part of the weight that a unit covers
  int64_t row, col;
  int rows, cols;
};

inline Unit unit_at(int64_t unit_row, int64_t unit_col, int64_t rows, int64_t cols) {
  const int64_t row = unit_row * kUnitRows, col = unit_col * kUnitCols;
  return {row, col, static_cast<int>(std::min<int64_t>(kUnitRows, rows - row)),
          static_cast<int>(std::min<int64_t>(kUnitCols, cols - col))};
}

// Gives each run its column and its position there (formats/tiled_bitmap.h). Returns the number of
// items in the fullest column.
int assign_columns(const RunLengths& lengths, uint32_t* starts);

// Reads all weights of a valid unit to rows `stride` apart.
inline void read_unit(const Kernels& kernels, const Packed& packed, int64_t index, uint16_t* unit,
                      int64_t stride) {
  const int64_t begin = packed.offsets[index];
  const int value_lines = static_cast<int>(packed.offsets[index + 1] - begin) - kHeadLines;
  kernels.read_unit(packed.lines + begin * kLineWords, packed.item_bytes, value_lines, unit,
                    stride);
}

}  // namespace flashsparse::tiled_bitmap
