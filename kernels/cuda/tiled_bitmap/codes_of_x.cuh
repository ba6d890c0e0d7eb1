// SPDX-License-Identifier: Apache-2.0
// How activations are quantized to int8 for tiled_bitmap's W8A8 kernel: the parameters of
// cuda/mma_units/quantise_x.cuh.
#pragma once
#include "common/narrow.cuh"

namespace flashsparse::tiled_bitmap {

// In each 16 columns, pairs of columns are stored in the order 0, 4, 1, 5, 2, 6, 3, 7. So the pairs
// t and t + 4, which lane t of a quad has in its mask (kept_codes.cuh), are four adjacent bytes.
struct CodesOfX {
  static constexpr float kLargest = kLargestInt8;
  static constexpr bool kHasNarrow = true;
  // The kernel multiplies weight bytes q + 128, and subtracts 128 times the sum of x.
  static constexpr bool kSums = true, kWide = false;

  static __device__ __forceinline__ uint32_t narrow(float a, float b, float c, float d) {
    return narrow_int8(a, b, c, d);
  }
  static __device__ __forceinline__ constexpr int column(int word, int byte) {
    return word / 4 * 16 + word % 4 * 2 + byte / 2 * 8 + byte % 2;
  }
};

}  // namespace flashsparse::tiled_bitmap
