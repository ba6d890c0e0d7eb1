// SPDX-License-Identifier: Apache-2.0
// How kept values are stored: natively, or quantized with scales. int8 and int4 are two's
// complement; fp8_e4m3 has no infinities, and its one NaN is invalid.
//
// A quantized type is a row here; common/widen.cuh converts its values on a GPU, cpu/codes.h and
// cpu/scalar_code.h on a CPU.
#pragma once
#include <cstdint>
#include <type_traits>

#include "common/host_device.h"

namespace flashsparse {

// X(enumerator, value of the option `values`, bits). cmake/cuda.cmake reads the enumerators.
#define FS_QUANTIZED_TYPES(X) \
  X(Fp8, "fp8_e4m3", 8)       \
  X(Int8, "int8", 8)          \
  X(Int4, "int4", 4)

#define FS_ENUMERATOR(name, option, bits) k##name,
enum class ValueType { kNative, FS_QUANTIZED_TYPES(FS_ENUMERATOR) };
#undef FS_ENUMERATOR

#define FS_BITS(name, option, bits) \
  if (type == ValueType::k##name) return bits;
FS_HOST_DEVICE constexpr int bits_of(ValueType type) {
  FS_QUANTIZED_TYPES(FS_BITS)
  return 16;
}
#undef FS_BITS

// Quantized values in a byte.
constexpr int codes_in_byte(ValueType type) { return bits_of(type) < 8 ? 8 / bits_of(type) : 1; }
constexpr int64_t code_bytes(ValueType type, int64_t entries) {
  return (entries + codes_in_byte(type) - 1) / codes_in_byte(type);
}

// Calls f with the type as a constant, whose ::value is usable in templates.
#define FS_CALL(name, option, bits) \
  if (type == ValueType::k##name) return f(std::integral_constant<ValueType, ValueType::k##name>{});
template <class F>
auto with_type(ValueType type, const F& f) {
  FS_QUANTIZED_TYPES(FS_CALL)
  return f(std::integral_constant<ValueType, ValueType::kNative>{});
}
#undef FS_CALL

}  // namespace flashsparse
