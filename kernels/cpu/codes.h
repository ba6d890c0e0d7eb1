// SPDX-License-Identifier: Apache-2.0
// Converts 8-bit and 4-bit values to fp32, exactly. The folder of each instruction set defines, for
// kLanes bytes,
//   load_signed(from, to)  two's complement
//   load_fp8(from, to)     e4m3 values / 256: their bits as float16, without a change of exponent
#pragma once
#include "cpu/vectors.h"
#include "formats/value_type.h"

namespace {

using flashsparse::ValueType;
using Signed = int32_t __attribute__((vector_size(4 * kLanes)));

FS_VECTOR_INLINE void load_signed(const uint8_t* from, Signed& to);
FS_VECTOR_INLINE void load_fp8(const uint8_t* from, Floats& to);

// Results are divided by this.
template <ValueType kType>
constexpr float kUnit = kType == ValueType::kFp8 ? 256 : 1;

// Converts entry number `entry` of kLanes rows; `step` are the bytes that contain it.
template <ValueType kType>
FS_VECTOR_INLINE void widen_code(const uint8_t* step, int64_t entry, Floats& to) {
  if constexpr (kType == ValueType::kFp8) {
    load_fp8(step, to);
  } else {
    Signed codes;
    load_signed(step, codes);
    if constexpr (flashsparse::bits_of(kType) == 4)
      codes = entry % 2 ? codes >> 4 : codes << 28 >> 28;
    to = __builtin_convertvector(codes, Floats);
  }
}

}  // namespace
