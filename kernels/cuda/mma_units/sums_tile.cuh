// SPDX-License-Identifier: Apache-2.0
// The accumulators of a warp in the layout of mma: a lane has four for 16 rows and 8 tokens.
#pragma once
#include "common/device.cuh"

namespace flashsparse::mma_units {

template <class Shape, class Sum = float>
using SumsTile = Sum[Shape::kRowUnits][Shape::kTokens / 8][4];

template <class Shape, class Sum>
__device__ __forceinline__ void clear(Sum (&tile)[Shape::kRowUnits][Shape::kTokens / 8][4]) {
  constexpr int kTokenBlocks = Shape::kTokens / 8;
  FS_UNROLL
  for (int i = 0; i < Shape::kRowUnits * kTokenBlocks * 4; ++i) {
    tile[i / 4 / kTokenBlocks][i / 4 % kTokenBlocks][i % 4] = 0;
  }
}

}  // namespace flashsparse::mma_units
