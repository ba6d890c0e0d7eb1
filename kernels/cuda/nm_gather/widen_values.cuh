// SPDX-License-Identifier: Apache-2.0
// Converts stored values to operand A of mma; formats/nm_gather.h shows both layouts.
#pragma once
#include "common/widen.cuh"
#include "formats/nm_gather.h"

namespace flashsparse::nm_gather {

// Fragment `number` of those in a lane's vectors, for units of 16 rows or more.
template <class Type, ValueType kValues, int kVectors>
__device__ __forceinline__ void widen_values(const uint4 (&vectors)[kVectors], int number,
                                             uint32_t (&a)[4]) {
  constexpr int kTogether = 16 / bits_of(kValues);  // fragments in a vector
  const uint4 v = vectors[number / kTogether];
  const int part = number % kTogether;
  if constexpr (kValues == ValueType::kNative) {
    a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
  } else if constexpr (kValues == ValueType::kInt4) {
    widen_int4<Type>(part == 0 ? v.x : part == 1 ? v.y : part == 2 ? v.z : v.w, a);
  } else {
    const uint32_t low = part ? v.z : v.x, high = part ? v.w : v.y;
    if constexpr (kValues == ValueType::kFp8) {
      widen_fp8<Type>(low, a[0], a[1]);
      widen_fp8<Type>(high, a[2], a[3]);
    } else {
      widen_int8<Type>(low, a[0], a[1]);
      widen_int8<Type>(high, a[2], a[3]);
    }
  }
}

// Multiplies a fragment by the scales of its rows, with the rounding of unpacked weights. The scale
// of rows 0 to 7 is the lower half of `scales`, that of rows 8 to 15 the upper one.
template <class Type>
__device__ __forceinline__ void scale_rows(uint32_t scales, uint32_t (&a)[4]) {
  const uint32_t rows[2] = {prmt(scales, 0, 0x1010), prmt(scales, 0, 0x3232)};
  FS_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = fma_two<Type>(a[i], rows[i % 2], 0x80008000);
}

}  // namespace flashsparse::nm_gather
