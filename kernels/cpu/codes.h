// SPDX-License-Identifier: Apache-2.0
// Codes of 8 and 4 bits to fp32, where they are exact. The folder of an instruction set brings, for
// kLanes bytes,
//   load_signed(from, to)  two's complement
//   load_fp8(from, to)     e4m3 codes / 256: what they are as float16 without a change of exponent
#pragma once
#include "cpu/vectors.h"
#include "formats/value_type.h"

namespace {

using flashsparse::ValueType;
using Signed = int32_t __attribute__((vector_size(4 * kLanes)));

FS_VECTOR_INLINE void load_signed(const uint8_t* from, Signed& to);
FS_VECTOR_INLINE void load_fp8(const uint8_t* from, Floats& to);

// Numbers come out divided by this.
template <ValueType kType>
constexpr float kUnit = kType == ValueType::kFp8 ? 256 : 1;

// Entry number `entry` of kLanes rows. `step` are the bytes of the rows that it lies in.
template <ValueType kType>
FS_VECTOR_INLINE void widen_code(const uint8_t* step, int64_t entry, Floats& to) {
  if constexpr (kType == ValueType::kFp8) {
    load_fp8(step, to);
  } else {
    Signed codes;
    load_signed(step, codes);
    if constexpr (kType == ValueType::kInt4) codes = entry % 2 ? codes >> 4 : codes << 28 >> 28;
    to = __builtin_convertvector(codes, Floats);
  }
}

}  // namespace
