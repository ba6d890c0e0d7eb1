// SPDX-License-Identifier: Apache-2.0
// How kept values are stored: natively, or quantized with scales. int8 and int4 are two's
// complement; fp8_e4m3 has no infinities, and its one NaN is invalid.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse {

enum class ValueType { kNative, kFp8, kInt8, kInt4 };

FS_HOST_DEVICE constexpr int bits_of(ValueType type) {
  return type == ValueType::kNative ? 16 : type == ValueType::kInt4 ? 4 : 8;
}

// Quantized values in a byte.
constexpr int codes_in_byte(ValueType type) { return type == ValueType::kInt4 ? 2 : 1; }
constexpr int64_t code_bytes(ValueType type, int64_t entries) {
  return (entries + codes_in_byte(type) - 1) / codes_in_byte(type);
}

}  // namespace flashsparse
