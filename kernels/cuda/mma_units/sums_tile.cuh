// SPDX-License-Identifier: Apache-2.0
// The sums of a warp: of 16 rows and 8 tokens each, as mma leaves them, four in a lane.
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
