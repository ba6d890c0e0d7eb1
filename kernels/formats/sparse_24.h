// SPDX-License-Identifier: Apache-2.0
// sparse_24, version 1: the runtime form of nm_vector for sparse tensor cores, which keep two of
// every four columns. Never written to disk. Its layout is that of the fragments of mma.sp
// (common/mma_sparse.cuh): a kernel loads them, converts 8-bit or 4-bit values, and computes
// nothing else.
//
// The weight [out_features, in_features] is divided into units of 16 rows x 256 columns, in
// row-major order: int32[ceil(out / 16)][ceil(in / 256)][words of a unit].
//
//   a unit:       | values: vectors | metadata: one vector | scales, where groups have them |
//   a vector:     | lane 0 | lane 1 | ... | lane 31 |     16 bytes each
//
//   bytes of a unit   values   metadata   by rows    by 128, 64, 32 columns
//   native, 16 bits     4096        512      4608
//   fp8_e4m3, int8      2048        512      2560    2624, 2688, 2816
//   int4                1024        512      1536    1600, 1664, 1792
//
// A step is 32 columns, of which a lane has eight values. In lane 4 g + t, value [i][e], i in 0..3,
// is of row g + 8 (i % 2) and of the four columns from 32 step + 16 (i / 2) + 4 t on; e is 0 for
// the lower one of the two that are kept. A lane's part of a vector holds 1, 2 or 4 consecutive
// steps, 16, 8 or 4 bytes each. In a step, from the lowest bits on, values have the order in which
// they are converted (common/widen.cuh):
//
//   native, fp8_e4m3   [0][0] [0][1] [1][0] [1][1] [2][0] [2][1] [3][0] [3][1]
//   int8               [0][0] [1][0] [0][1] [1][1] [2][0] [3][0] [2][1] [3][1]
//   int4               [0][0] [1][0] [2][0] [3][0] [0][1] [1][1] [2][1] [3][1]
//
// Quantized values are those of nm_vector.
//
// Word j of a lane's metadata serves steps 2 j and 2 j + 1: it is what lanes 4 g and 4 g + 1
// provide for the former, and lanes 4 g + 2 and 4 g + 3 for the latter, by the instruction's
// selector. The first of the two lanes has columns 0 to 15 of the step, the other 16 to 31. Bits 16
// r + 4 t to 16 r + 4 t + 3 are for row g + 8 r and the four columns from 4 t on: the column, 0 to
// 3, of the lower value, then that of the upper one.
//
// Scales of groups of columns are in the unit: [group in the unit][row], 16 bits each, of the
// weight's dtype: 32 bytes a group. Scales of rows are a tensor of their own.
//
// Four columns that keep fewer than two are filled up with the smallest other columns, with value
// +0, and so is all that is past the last row or column, where scales are +0, too. Every zero is
// +0: equal weights give equal units.
//
// The same bytes serve wgmma.sp m64nNk32 with A in registers: each of its four warps takes the 16
// rows of one unit, with the same words and the same selector.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/mma_units.h"
#include "formats/value_type.h"

namespace flashsparse::sparse_24 {

using mma_units::kUnitCols;
using mma_units::kUnitRows;
using mma_units::unit_cols;
using mma_units::unit_rows;

inline constexpr int kStepCols = 32;
inline constexpr int kSteps = kUnitCols / kStepCols;
inline constexpr int kLaneBytes = 16;
inline constexpr int kVectorBytes = 32 * kLaneBytes;

// Int8 by int8: half of the columns are kept, and so many products of up to 127 * 128 fit in an
// int32.
inline constexpr int64_t kMostInt8Cols = 1 << 18;

// How a unit stores its values: their type, and the columns that share a scale in the unit, or 0.
struct UnitLayout {
  ValueType type = ValueType::kNative;
  int group = 0;

  // Whether values have scales of rows, which are not in the unit.
  FS_HOST_DEVICE constexpr bool has_row_scales() const {
    return type != ValueType::kNative && group == 0;
  }
  // Steps in 16 bytes of a lane.
  FS_HOST_DEVICE constexpr int lane_steps() const { return 16 / bits_of(type); }
  // Offsets of the parts in bytes.
  FS_HOST_DEVICE constexpr int metadata() const { return kSteps / lane_steps() * kVectorBytes; }
  FS_HOST_DEVICE constexpr int scales() const { return metadata() + kVectorBytes; }
  FS_HOST_DEVICE constexpr int bytes() const {
    return scales() + (group ? kUnitCols / group * kUnitRows * 2 : 0);
  }
  FS_HOST_DEVICE constexpr int words() const { return bytes() / 4; }
};

}  // namespace flashsparse::sparse_24
