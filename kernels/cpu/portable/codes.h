// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "cpu/codes.h"

namespace {

FS_VECTOR_INLINE void load_signed(const uint8_t* from, Signed& to) {
  for (int lane = 0; lane < kLanes; ++lane) to[lane] = static_cast<int8_t>(from[lane]);
}

FS_VECTOR_INLINE void load_fp8(const uint8_t* from, Floats& to) {
  Signed codes;
  load_signed(from, codes);
  // Moves exponent and fraction to their position, with the sign in all bits above; 2^112 corrects
  // the exponent's bias to that of fp32, also for subnormals.
  const Signed bits = codes << 20 & static_cast<int32_t>(0x87f00000);
  to = reinterpret_cast<Floats>(bits) * 0x1p112f;
}

}  // namespace
