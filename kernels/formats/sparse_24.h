// SPDX-License-Identifier: Apache-2.0
// sparse_24, version 1: the runtime form of nm_vector for sparse tensor cores, which keep two of
// every four columns. Never written to disk. What lies here is what a lane of mma.sp hands to the
// instruction (common/mma_sparse.cuh): a kernel loads it, and works nothing out.
//
// The weight [out_features, in_features] is cut into units of 16 rows x 256 columns, the units of a
// row of units one after the other: int32[ceil(out / 16)][ceil(in / 256)][1152].
//
//   a unit, 4608 bytes:  | values of step 0 | step 1 | ... | step 7 | metadata |   512 bytes each
//   512 bytes:           | lane 0 | lane 1 | ... | lane 31 |                        16 bytes each
//
// A step is 32 columns. Of lane 4 g + t, word i of the step's 16 bytes holds the two values kept of
// row g + 8 (i % 2) and of the four columns from 32 step + 16 (i / 2) + 4 t on, the lower column in
// the lower half. Word j of the lane's metadata serves the steps 2 j and 2 j + 1: it is what the
// lanes 4 g and 4 g + 1 give to the former and 4 g + 2 and 4 g + 3 to the latter, which is the
// instruction's selector. The first of the two lanes has the columns 0 to 15 of the step, the other
// 16 to 31; bits 16 r + 4 t to 16 r + 4 t + 3 are for row g + 8 r and the four columns from 4 t on:
// the column, 0 to 3, of the lower value and then of the upper one, in rising order.
//
// Four columns that keep fewer than two are filled with the smallest other columns, whose value is
// +0; so is what lies beyond the last row or column. Every zero is +0: equal weights, equal units.
//
// The same bytes serve wgmma.sp m64nNk32 with A in registers: each of its four warps takes the 16
// rows of one unit, with the same words and the same selector. Narrower values change nothing but
// the size of a step's part: 256 bytes for 8 bits, 128 for 4, the order of a lane's values the
// same.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::sparse_24 {

inline constexpr int kUnitRows = 16;
inline constexpr int kUnitCols = 256;
inline constexpr int kStepCols = 32;
inline constexpr int kSteps = kUnitCols / kStepCols;
inline constexpr int kLaneBytes = 16;
inline constexpr int kStepBytes = 32 * kLaneBytes;     // of values, of all lanes
inline constexpr int kMetadata = kSteps * kStepBytes;  // where it begins in a unit
inline constexpr int kUnitBytes = kMetadata + 32 * kLaneBytes;
inline constexpr int kUnitWords = kUnitBytes / 4;

FS_HOST_DEVICE constexpr int64_t unit_rows(int64_t out_features) {
  return (out_features + kUnitRows - 1) / kUnitRows;
}
FS_HOST_DEVICE constexpr int64_t unit_cols(int64_t in_features) {
  return (in_features + kUnitCols - 1) / kUnitCols;
}

}  // namespace flashsparse::sparse_24
