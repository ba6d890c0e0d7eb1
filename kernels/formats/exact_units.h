// SPDX-License-Identifier: Apache-2.0
// exact_units, version 1: the runtime form on a GPU of exact bfloat16 weights in 12 bits. Never
// written to disk. Its layout is that of the fragments of mma.m16n8k16 (common/mma.cuh).
//
// The weight [out_features, in_features] is divided into units of 16 rows x 256 columns, in
// row-major order: int32[ceil(out / 16)][ceil(in / 256)][1536].
//
//   a unit:     | vector 0 | ... | vector 11 |
//   a vector:   | lane 0 | lane 1 | ... | lane 31 |     16 bytes each
//
// A weight is a sign, a code c of 4 bits and 7 bits of mantissa. Its exponent is c plus the base of
// its row; code 0 is a zero, or an exception, whose place holds +0. Vectors 3 p to 3 p + 2 hold the
// columns from 64 p on. Of these a lane has 12 words, three for each step of 16 columns, in which
// it has four registers of two weights: in lane 4 g + t register i is of row g + 8 (i % 2) and of
// the columns from 16 step + 8 (i / 2) + 2 t on, the lower one in the lower half. A half of a
// register is
//
//   bit    15     14..11   10..7   6..0
//          sign     0      code    mantissa
//
// Words 0, 1 and 2 hold registers 0, 1 and 2. The four bits that a half does not use hold the bits
// of register 3: word 0 its bits 15 and 2..0 (rotated left by 12), word 1 its bits 6..3 (shifted
// left by 8), word 2 its bits 10..7 (shifted left by 4).
//
// Of a weight that keeps at most two of every four columns a unit may hold these two alone, as
// mma.sp takes them: int32[ceil(out / 16)][ceil(in / 256)][896].
//
//   a unit of 2:4:   | vector 0 | ... | vector 5 | metadata: one vector |
//
// Its 16 rows x 128 kept columns lie as those of a dense unit do: two panels, in each of which a
// lane has four steps of 32 columns of the weight. The metadata, and which columns are kept where
// fewer than two are not zero, are those of formats/sparse_24.h. An exception is no kept column:
// its slot says where it is.
//
// As a bfloat16 a half is the weight times 2^-(base): times 2^112 it lies in [2^-14, 2). The scale
// of a row is 2^(base - 112), float32, by which its sums are multiplied. base <= 239, so that a
// scale is a normal number and no code is an infinity.
//
// Exceptions: weights whose exponent has no code (denormal numbers, infinities and NaN among them).
// A unit has 4, 8 or 16 slots of a word each, the same number in a layer: int32[ceil(out / 16)]
// [ceil(in / 256)][slots], by rising rows and columns, 0 where there are no more. A slot is
//
//   bit    31..16                                     15..12   11..8        7..0
//          the weight over its scale, a bfloat16         0     row of unit  column of unit
//
// so that it is added to the same accumulators. Over its scale a weight in a slot is below 2^64 and
// no smaller than 2^-126, or 2^-63 where the scale is above 1; or it is an infinity or NaN, whose
// bits stay. So no product with x is lost that float32 would hold. Weights that are not, or find no
// slot, are in a list that is added to sums after they were scaled: int32[room][2], by rising rows
// and columns, beside offsets int32[ceil(out / 16) + 1] of rows of units. Its words are the column,
// and the weight's bits << 16 | the row modulo 65536. What is past the last offset is 0.
//
// 4-bit codes of exponents: as in Turbo-Lossless (2026). Windows of rows, and this layout, are our
// own.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/mma_units.h"

namespace flashsparse::exact_units {

using mma_units::kUnitCols;
using mma_units::kUnitRows;
using mma_units::unit_cols;
using mma_units::unit_rows;

inline constexpr int kLaneBytes = 16;
inline constexpr int kVectorBytes = 32 * kLaneBytes;
inline constexpr int kPanelCols = 64, kPanels = kUnitCols / kPanelCols;  // of x, and dense units
inline constexpr int kPanelVectors = 3;

// What a unit holds of its columns: all of them, or two of every four.
enum class Kind { kDense, k24 };

FS_HOST_DEVICE constexpr int panels(Kind kind) { return kind == Kind::k24 ? kPanels / 2 : kPanels; }
// Offset of the metadata, or the end where there is none.
FS_HOST_DEVICE constexpr int metadata(Kind kind) {
  return panels(kind) * kPanelVectors * kVectorBytes;
}
FS_HOST_DEVICE constexpr int unit_bytes(Kind kind) {
  return metadata(kind) + (kind == Kind::k24 ? kVectorBytes : 0);
}
FS_HOST_DEVICE constexpr int unit_words(Kind kind) { return unit_bytes(kind) / 4; }

// Words of 16 columns, and the powers of two of the comment above.
inline constexpr int kStepWords = 3;
inline constexpr uint32_t kRegisterMask = 0x87ff87ff;
inline constexpr uint32_t kTwoTo112 = 0x77807780;  // twice, as bfloat16

constexpr bool is_slots(int64_t slots) { return slots == 4 || slots == 8 || slots == 16; }

// Parts of a slot, and of the second word of the list.
FS_HOST_DEVICE constexpr uint32_t slot_column(uint32_t slot) { return slot & 0xff; }
FS_HOST_DEVICE constexpr uint32_t slot_row(uint32_t slot) { return slot >> 8 & 0xf; }
FS_HOST_DEVICE constexpr uint16_t slot_bits(uint32_t slot) {
  return static_cast<uint16_t>(slot >> 16);
}

}  // namespace flashsparse::exact_units
