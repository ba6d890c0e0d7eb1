// SPDX-License-Identifier: Apache-2.0
// Units: blocks of 16 rows x 256 columns, into which exact_units, hybrid_units, sparse_24 and
// tiled_bitmap divide a weight [out_features, in_features], in row-major order. The layout within a
// unit is the format's: it holds each lane's fragment of operand A. All that kernels do around a
// unit is shared (cuda/mma_units).
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
