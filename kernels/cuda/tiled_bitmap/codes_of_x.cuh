// SPDX-License-Identifier: Apache-2.0
// How activations become codes of int8 beside tiled_bitmap (cuda/mma_units/quantise_x.cuh).
#pragma once
#include "common/narrow.cuh"

namespace flashsparse::tiled_bitmap {

// Of each 16 columns the pairs 0, 4, 1, 5, 2, 6, 3, 7: the lane t of four has of them four that
// follow each other, which are the pairs t and t + 4, as in its mask (kept_codes.cuh).
struct CodesOfX {
  static constexpr float kLargest = kLargestInt8;
  static constexpr bool kHasNarrow = true;
  static constexpr bool kSums = true;  // the kernel multiplies bytes code + 128

  static __device__ __forceinline__ uint32_t narrow(float a, float b, float c, float d) {
    return narrow_int8(a, b, c, d);
  }
  static __device__ __forceinline__ constexpr int column(int word, int byte) {
    return word / 4 * 16 + word % 4 * 2 + byte / 2 * 8 + byte % 2;
  }
};

}  // namespace flashsparse::tiled_bitmap
