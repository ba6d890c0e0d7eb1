// SPDX-License-Identifier: Apache-2.0
// nm_spmm: vector-wise N:M weights in float32, as NM-SpMM's outer product reads them (Ma et al.,
// 2025, section III). The runtime form of nm_vector on CUDA for vectors of 4 rows and more.
//
// Kept columns are numbered in order. A *panel* is what a block multiplies at a time: whole
// windows, of which at least 16 columns are kept, a multiple of 4, and all columns are within reach
// of an index byte. The paper calls its columns k_s and its entries w_s.
//
//   columns   | window of m | window | ...              | ...                 |
//   kept      | n           | n      | ...              | ...                 |
//             '----------- panel: columns, entries -----+-------- panel ------'
//
//   values   float [blocks][panels][units][entries][32]: B' of the paper. A block is 128 rows, a
//            unit 32 of them, which are contiguous: those of a warp
//   index    bytes [blocks][panels][groups of a block][entries]: D, the entry's column in its panel
//   columns  bytes [blocks][panels][capacity]: col_info. The columns of a panel that the block
//            keeps any value of, ascending, padded with zeros (column 0 comes first, if it is kept)
//   packed   bytes, as index: the packed form of D, the entry's position in `columns`
//
// Past the weight's columns windows keep their first n positions, with zeros, up to whole panels;
// past its rows there are zeros up to whole blocks. x is zero past the columns.
#pragma once
#include <cstdint>

namespace flashsparse::nm_spmm {

inline constexpr int kUnitRows = 32;
inline constexpr int kBlockRows = 128;          // rows that share a list of columns
inline constexpr int kReach = 256;              // columns that an index byte can address
inline constexpr int kLeast = 16, kMost = 128;  // kept columns of a panel
inline constexpr int kChunk = 4;                // entries whose index bytes are one word

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The layout of a pattern; columns is 0 if it has none.
struct Layout {
  int vector_length;
  int columns, entries;  // of a panel
  int capacity;          // of a block's list of columns, a multiple of 4

  constexpr int64_t panels(int64_t cols) const { return ceil_div(cols, columns); }
  constexpr int64_t blocks(int64_t rows) const { return ceil_div(rows, kBlockRows); }
  constexpr int groups() const { return kBlockRows / vector_length; }  // of a block
};

constexpr Layout layout_of(int n, int m, int vector_length) {
  const int step = n % 4 == 0 ? 1 : n % 2 == 0 ? 2 : 4;  // windows with whole words of index
  int windows = static_cast<int>(ceil_div(kLeast, step * n)) * step;
  while (windows > step && windows * m > kReach) windows -= step;
  const int columns = windows * m, entries = windows * n;
  if (columns > kReach || entries > kMost || vector_length < kChunk)
    return {vector_length, 0, 0, 0};
  const int all = entries * (kBlockRows / vector_length);
  return {vector_length, columns, entries, ((all < columns ? all : columns) + 3) / 4 * 4};
}

}  // namespace flashsparse::nm_spmm
