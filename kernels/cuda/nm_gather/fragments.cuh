// SPDX-License-Identifier: Apache-2.0
// Fragments of operand A of mma, and the scales of their rows.
#pragma once
#include "cuda/shared/widen_values.cuh"
#include "formats/nm_gather.h"

namespace flashsparse::nm_gather {

// Fragment `number` of those in a lane's vectors, for units of 16 rows or more.
template <class Type, ValueType kValues, int kVectors>
__device__ __forceinline__ void widen_fragment(const uint4 (&vectors)[kVectors], int number,
                                               uint32_t (&a)[4]) {
  constexpr int kTogether = fragments_in_vector(kValues);
  widen_values<Type, kValues>(vectors[number / kTogether], number % kTogether, a);
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
