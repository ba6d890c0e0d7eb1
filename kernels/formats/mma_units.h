// SPDX-License-Identifier: Apache-2.0
// Units: what sparse_24 and tiled_bitmap cut a weight [out_features, in_features] into. A unit is
// 16 rows x 256 columns, the units of a row of units one after the other. What lies in a unit is
// the format's own: for each lane what it hands to the tensor cores as operand A. So what kernels
// do around a unit knows no format (cuda/mma_units).
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::mma_units {

inline constexpr int kUnitRows = 16;
inline constexpr int kUnitCols = 256;

FS_HOST_DEVICE constexpr int64_t unit_rows(int64_t out_features) {
  return (out_features + kUnitRows - 1) / kUnitRows;
}
FS_HOST_DEVICE constexpr int64_t unit_cols(int64_t in_features) {
  return (in_features + kUnitCols - 1) / kUnitCols;
}

}  // namespace flashsparse::mma_units
