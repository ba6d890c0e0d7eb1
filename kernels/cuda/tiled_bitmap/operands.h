// SPDX-License-Identifier: Apache-2.0
// What the linear kernel of tiled_bitmap multiplies.
#pragma once
#include "common/host_device.h"

namespace flashsparse::tiled_bitmap {

enum class Operands {
  kNative,   // 16-bit values by 16-bit x
  kCodes,    // codes of int8 by 16-bit x
  kRounded,  // codes of int8 by codes of int8, to which x was rounded
};

// Bytes of an item, and of an element of x.
FS_HOST_DEVICE constexpr int item_bytes(Operands operands) {
  return operands == Operands::kNative ? 2 : 1;
}
FS_HOST_DEVICE constexpr int x_bytes(Operands operands) {
  return operands == Operands::kRounded ? 1 : 2;
}

}  // namespace flashsparse::tiled_bitmap
