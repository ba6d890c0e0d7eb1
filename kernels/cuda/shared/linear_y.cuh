// SPDX-License-Identifier: Apache-2.0
// Stores y in quads: four rows of a token.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"

namespace flashsparse {

// Stores sums plus bias [rows] or nothing, rounded, as y[token][row] to y[token][row + 3], if these
// rows exist. y is 8-byte aligned, row a multiple of 4.
template <class Type>
__device__ __forceinline__ void store_y(uint16_t* y, const uint16_t* bias, int rows, int token,
                                        int row, const float4& sum) {
  const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
  uint16_t* const place = y + (static_cast<int64_t>(token) * rows + row);
  uint16_t values[4];
  FS_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float added = bias && row + i < rows ? to_float<Type>(bias[row + i]) : 0.0f;
    values[i] = from_float<Type>(sums[i] + added);
  }
  if (rows % 4 == 0) {
    if (row < rows) {
      store_global(
          reinterpret_cast<uint2*>(place),
          make_uint2(values[0] | uint32_t{values[1]} << 16, values[2] | uint32_t{values[3]} << 16));
    }
  } else {
    FS_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (row + i < rows) store_global(place + i, values[i]);
    }
  }
}

}  // namespace flashsparse
