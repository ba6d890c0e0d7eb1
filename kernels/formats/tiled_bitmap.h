// SPDX-License-Identifier: Apache-2.0
// tiled_bitmap, version 1: one bit for each weight and 16 bits for each kept value, laid out so
// that a lane of a tensor core instruction finds its own values without searching.
// docs/tiled_bitmap.md is the specification.
//
// The weight [out_features, in_features] is divided into units of 16 rows x 256 columns, in
// row-major order: unit number row / 16 * ceil(in_features / 256) + column / 256. Offsets count
// lines of 32 words, 128 bytes:
//
//   weight_packed  int32[lines][32]   the units, one after the other
//   unit_offsets   int32[units + 1]   the line at which each unit begins, and where the last ends
//
//   a unit:   | masks: 4 lines | starts: 1 line | values: as the fullest column needs |
//
// Lane 4 g + t (g in 0..7, t in 0..3) has 128 of the unit's weights: its fragment of operand A (of
// mma m16n8k16, and of wgmma m64nNk16 with A in registers, which has the same layout).
//
//   masks    lane l has the words 4 l to 4 l + 3 of the first 4 lines, one for every 64 columns.
//            Bit j + 8 e of word w, j in 0..7 and e in 0..3, is 1 where the weight of
//              row     g + 8 (e / 2)
//              column  64 w + 8 j + 2 t + e % 2
//            of the unit is kept. So the four bits j, j + 8, j + 16, j + 24 are two words of A, and
//            A of 16 columns is two such groups: j = 2 s, 2 s + 1 for the columns from 16 s on.
//   values   lines of 32 words: word c of each is of column c. A column is a list of items, two in
//            a word, the first in the lower half. A lane's kept values are two runs of items: run 0
//            for words 0 and 1 of its mask, run 1 for words 2 and 3, each in mask order: by w, then
//            j, then e. Every column holds one run 0 followed by one run 1. The rest of the last
//            line is +0.
//   starts   word l: where the runs of lane l begin, run 0 in the lower 16 bits, run 1 in the
//            upper: 32 times the number of the item in its column, plus the column.
//
// Assignment of columns: the longest run 0 gets column 0, and so on; the longest run 1 gets the
// column with the fewest items so far. Runs of equal length go by lane, equal columns by number. So
// columns have nearly equal lengths, and since the runs of 32 lanes are in 32 columns, lanes always
// read from 32 different banks of shared memory, however far each has advanced.
//
// Bits past the last row or column are 0. A weight is kept if it is not equal to zero: infinities
// and NaN are kept. Equal weights give equal bytes.
//
// Int8 values with a scale for each row are items of 8 bits, four in a word, the first in the
// lowest byte: item i of column c is byte i % 4 of word c of line 5 + i / 4. All else is the same.
// The byte of a kept weight is its value + 128, and the rest of the last line is 0.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/mma_units.h"

namespace flashsparse::tiled_bitmap {

using mma_units::kUnitCols;
using mma_units::kUnitRows;
using mma_units::unit_cols;
using mma_units::unit_rows;

inline constexpr int kLineWords = 32;  // columns of items, too
inline constexpr int kLineBytes = kLineWords * 4;
inline constexpr int kLaneWeights = kUnitRows * kUnitCols / 32;
inline constexpr int kMaskWords = kLaneWeights / 32;  // of a lane
inline constexpr int kRuns = 2;                       // of a lane
inline constexpr int kRunMasks = kMaskWords / kRuns;

inline constexpr int kMaskLines = kMaskWords;             // of a unit
inline constexpr int kHeadLines = kMaskLines + 1;         // before its values
inline constexpr int kMostValueLines = kLaneWeights / 2;  // of a unit without zeros
inline constexpr int kMostLines = kHeadLines + kMostValueLines;

// The same for items of `item_bytes`: 2, as above, or 1 for int8.
FS_HOST_DEVICE constexpr int items_of_word(int item_bytes) { return 4 / item_bytes; }
FS_HOST_DEVICE constexpr int most_lines(int item_bytes) {
  return kHeadLines + kLaneWeights / items_of_word(item_bytes);
}
inline constexpr int kCodeZero = 128;  // the byte of value 0

FS_HOST_DEVICE constexpr int64_t units(int64_t out_features, int64_t in_features) {
  return unit_rows(out_features) * unit_cols(in_features);
}

// Position in the unit of bit `bit` of word `word` in lane `lane`'s mask.
FS_HOST_DEVICE constexpr int bit_row(int lane, int bit) { return lane / 4 + bit / 16 * 8; }
FS_HOST_DEVICE constexpr int bit_col(int lane, int word, int bit) {
  return 64 * word + bit % 8 * 8 + lane % 4 * 2 + bit / 8 % 2;
}

}  // namespace flashsparse::tiled_bitmap
