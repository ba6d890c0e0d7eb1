// SPDX-License-Identifier: Apache-2.0
// From the float32 or int32 product of a library to scaled, 16-bit y (scale_sums.cuh).
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::mma_units {

inline constexpr int kScaleThreads = 128;
inline constexpr int kScaledRows = 4, kScaledTokens = 8;  // of a thread

// All of it device memory. y = sums * x_scales * scales + bias, for a panel of the weight's rows.
struct SumsToScale {
  const uint32_t* sums;   // [tokens, sums_stride], int32 or float32, 16-byte aligned
  int64_t sums_stride;    // a multiple of 4, no less than `rows`
  const float* scales;    // [rows], or null for 1
  const float* x_scales;  // [tokens]
  const uint16_t* bias;   // [rows], or null
  uint16_t* y;            // [tokens, y_stride], 8-byte aligned
  int64_t y_stride;
  int rows;
  int64_t tokens;
  bool are_floats;  // the sums
};

// Blocks for one range of tokens, and in all.
FS_HOST_DEVICE constexpr int scale_row_blocks(int rows) {
  constexpr int kBlockRows = kScaleThreads * kScaledRows;
  return (rows + kBlockRows - 1) / kBlockRows;
}
FS_HOST_DEVICE constexpr int64_t scale_blocks(int rows, int64_t tokens) {
  return (tokens + kScaledTokens - 1) / kScaledTokens * scale_row_blocks(rows);
}

}  // namespace flashsparse::mma_units
