// SPDX-License-Identifier: Apache-2.0
// What the decode kernel of tiled_bitmap multiplies.
#pragma once
#include "common/host_device.h"

namespace flashsparse::tiled_bitmap {

enum class Operands {
  kNative,   // 16-bit weights, 16-bit x
  kCodes,    // int8 weights, 16-bit x
  kRounded,  // int8 weights, x quantized to int8 per token (W8A8)
};

// Bytes of a stored weight, and of an element of x.
FS_HOST_DEVICE constexpr int item_bytes(Operands operands) {
  return operands == Operands::kNative ? 2 : 1;
}
FS_HOST_DEVICE constexpr int x_bytes(Operands operands) {
  return operands == Operands::kRounded ? 1 : 2;
}

}  // namespace flashsparse::tiled_bitmap
