// SPDX-License-Identifier: Apache-2.0
// nm_gather: vector-wise N:M weights in the order of tensor core fragments, with indices that are
// addresses of x. The runtime form of nm_vector on CUDA for vectors of 8 rows and more.
//
// Kept columns are numbered in order: kept column j is in window j / n. A *step* is 16 kept
// columns, the depth of one mma, and a *pair* of steps is what a warp loads at a time. A *panel* is
// as many whole windows as are whole steps and within reach of an index byte, 256 columns. A
// *section* is the smallest number of panels that is whole pairs, one or two. *Units* have 8, 16 or
// 32 rows: the vector length, or 32 if that is less; units of longer vectors share an index.
//
//   columns   | window of m | window | ...              | ...                 |
//   kept      | n           | n      | ...              | ...                 |
//             '------------- panel: panel_steps --------+------- panel -------'
//             '----- section: section_pairs (pairs of steps of one panel, or of two) -----'
//
//   values  [units][pairs][unit_rows * 32]: A fragments of mma m16n8k16, 8 values of a lane each.
//           Where row r of the unit and entry e of the pair lie:
//             step = e / 16, half = e / 8 % 2, lane = r % 8 * 4 + e % 8 / 2
//             unit_rows >= 16: [step][tile = r / 16][lane][half][r / 8 % 2][e % 2]
//             unit_rows == 8:  [lane][step][half][e % 2]
//           A lane loads 16 bytes at a time. Narrower values, for which unit_rows >= 16: these hold
//           two fragments of 8 bits or four of 4, [fragment = step, tile], of a lane:
//             [fragment / s][lane][fragment % s][order], s = 16 / bits
//           and the 8 values lie as they come out of common/widen.cuh, low nibble first:
//             fp8_e4m3  [half][r / 8 % 2][e % 2]
//             int8      [half][e % 2][r / 8 % 2]
//             int4      [e % 2][half][r / 8 % 2]
//           8-bit values have float32 scales of rows in a tensor of their own. A unit and pair of
//           int4, which has 32 rows and scales of groups of columns, ends with the scales of each
//           row and step:
//             [r % 8][step][r / 8] 16-bit: the 16 bytes that a lane needs
//           A panel is a group then.
//   index   [groups][pairs][32] bytes: entry e of a pair is in column c, and its byte is
//           x_row(c) - (the panel's first column rounded down to a multiple of 32)
//
// x_row is the position of a column in shared memory, in a plane of 8 tokens: column 4i + k of 32
// is row 8k + i, so that threads which transpose 4 columns each store to different banks. A row is
// 16 bytes, so x_row % 8 determines its banks. The entries of a panel are dealt to groups of 8,
// those with equal banks one after the other, so that the rows of a group lie in different banks as
// far as possible: ldmatrix reads 8 rows at once.
//
// Past the weight's columns windows keep their first n positions, with zeros, up to whole sections;
// past its rows there are zeros up to whole units. x is zero past the columns.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/value_type.h"

namespace flashsparse::nm_gather {

inline constexpr int kStep = 16, kPair = 32;  // kept columns
inline constexpr int kReach = 256;            // rows of x that an index byte can address
inline constexpr int kBlock = 32;             // columns that x_row permutes

FS_HOST_DEVICE constexpr int x_row(int column) {
  return (column & ~(kBlock - 1)) | (column & 3) << 3 | (column >> 2 & 7);
}
FS_HOST_DEVICE constexpr int column_of_x_row(int row) {
  return (row & ~(kBlock - 1)) | (row & 7) << 2 | (row >> 3 & 3);
}
FS_HOST_DEVICE constexpr int block_begin(int column) { return column & ~(kBlock - 1); }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether quantized values have scales of rows, which multiply accumulators, and not of groups of
// columns.
FS_HOST_DEVICE constexpr bool scaled_by_row(ValueType type) { return bits_of(type) == 8; }
FS_HOST_DEVICE constexpr bool scaled_by_group(ValueType type) { return bits_of(type) == 4; }
// Of a unit and pair.
FS_HOST_DEVICE constexpr int group_scale_bytes(ValueType type) {
  return scaled_by_group(type) ? 32 * 2 * 2 : 0;
}

// The layout of a pattern; panel_columns is 0 if it has none.
struct Layout {
  int unit_rows;    // 8, 16 or 32
  int group_units;  // units that share an index
  int panel_columns, panel_steps;
  int section_panels;  // 1 or 2
  ValueType value_type;

  constexpr int section_columns() const { return section_panels * panel_columns; }
  constexpr int section_pairs() const { return section_panels * panel_steps / 2; }
  constexpr int64_t sections(int64_t cols) const { return ceil_div(cols, section_columns()); }
  constexpr int64_t pairs(int64_t cols) const { return sections(cols) * section_pairs(); }
  constexpr int64_t units(int64_t rows) const { return ceil_div(rows, unit_rows); }
  constexpr int64_t groups(int64_t rows) const { return ceil_div(units(rows), group_units); }
  // Bytes of the values of a unit and pair, with scales of groups.
  constexpr int pair_bytes() const {
    return unit_rows * kPair * bits_of(value_type) / 8 + group_scale_bytes(value_type);
  }
};

// The smallest number of windows that is whole steps must be within reach of an index byte, from
// the multiple of 32 before their first column on. A panel is as many of them as are, within a
// group of columns that share a scale. A lane's share of a pair must be 16 bytes or more.
constexpr Layout layout_of(int n, int m, int vector_length,
                           ValueType value_type = ValueType::kNative, int group = 0) {
  int windows = 1;
  while (windows * n % kStep != 0) windows *= 2;
  const int least = windows * m;
  int columns = (group ? group : kReach) / least * least;
  if (columns % kBlock != 0) columns = (kReach - kBlock + 1) / least * least;
  const int steps = columns / m * n / kStep;
  const int unit_rows = vector_length < 32 ? vector_length : 32;
  const bool fits = unit_rows * bits_of(value_type) >= 8 * 16 && group % m == 0 &&
                    scaled_by_group(value_type) == (group > 0);
  return {unit_rows, vector_length / unit_rows, fits ? columns : 0, steps, steps % 2 + 1,
          value_type};
}

// The tensors of a weight, or of some of its units and their groups; all 16-byte aligned.
struct Stored {
  const void* values;
  const void* index;
  const float* row_scales;  // [rows], of quantized values; else null
};

}  // namespace flashsparse::nm_gather
