// SPDX-License-Identifier: Apache-2.0
// Sizes of quantized activations (quantise_x.cuh).
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::mma_units {

inline constexpr int kQuantiseThreads = 256;
inline constexpr int kQuantisedCols = 32;  // that a thread quantizes at once

// Bytes of a token.
FS_HOST_DEVICE constexpr int64_t quantised_stride(int64_t cols) {
  return (cols + kQuantisedCols - 1) / kQuantisedCols * kQuantisedCols;
}

}  // namespace flashsparse::mma_units
