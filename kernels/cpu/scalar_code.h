// SPDX-License-Identifier: Apache-2.0
// Converts one quantized value. For plain sources only, as scalar.h.
#pragma once
#include <cstdint>

#include "common/float16.h"
#include "formats/value_type.h"

namespace flashsparse::cpu {

// Entry number `entry` of a row as a float; `byte` contains it.
inline float code_number(ValueType type, uint8_t byte, int64_t entry) {
  if (type == ValueType::kFp8) {
    // The same fraction, with an exponent bias of 15 instead of 7.
    return 256 * float_from_float16(static_cast<uint16_t>((byte & 0x80) << 8 | (byte & 0x7f) << 7));
  }
  if (bits_of(type) == 8) return static_cast<int8_t>(byte);
  const int nibble = entry % 2 ? byte >> 4 : byte & 15;
  return static_cast<float>((nibble ^ 8) - 8);
}

}  // namespace flashsparse::cpu
