// SPDX-License-Identifier: Apache-2.0
// The epilogue of Sums (sums.cuh) for accumulators that a library's product has written to memory:
// the same bits.
#pragma once
#include <type_traits>

#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/mma_units/scale_sums.h"

namespace flashsparse::mma_units {

template <class Sum>
__device__ __forceinline__ float number(uint32_t bits) {
  if constexpr (std::is_same_v<Sum, float>) return __uint_as_float(bits);
  return static_cast<float>(static_cast<int32_t>(bits));
}

// Writes y [tokens, rows] from every token's first `rows` results; a thread has kScaledRows rows
// and kScaledTokens tokens. Launch with scale_blocks(rows, tokens) blocks of kScaleThreads.
template <class Type, class Sum>
__global__ void __launch_bounds__(kScaleThreads) scale_sums_kernel(const SumsToScale a) {
  static_assert(kScaledRows == 4, "sums of 16 bytes");
  const int across = scale_row_blocks(a.rows);
  const int row = (blockIdx.x % across * kScaleThreads + threadIdx.x) * kScaledRows;
  if (row >= a.rows) return;
  float scale[kScaledRows], bias[kScaledRows];
  FS_UNROLL
  for (int i = 0; i < kScaledRows; ++i) {
    const bool inside = row + i < a.rows;
    scale[i] = inside && a.scales ? a.scales[row + i] : 1.0f;
    bias[i] = inside && a.bias ? to_float<Type>(a.bias[row + i]) : 0.0f;
  }
  const int64_t first = int64_t{blockIdx.x / across} * kScaledTokens;
  const int tokens = static_cast<int>(min(int64_t{kScaledTokens}, a.tokens - first));
  uint4 sums[kScaledTokens];  // all loads are in flight before the first is needed
  FS_UNROLL
  for (int t = 0; t < kScaledTokens; ++t) {
    const int64_t token = first + min(t, tokens - 1);
    sums[t] = load_streaming(reinterpret_cast<const uint4*>(a.sums + token * a.sums_stride + row));
  }
  const bool in_words = a.y_stride % kScaledRows == 0 && row + kScaledRows <= a.rows;
  FS_UNROLL
  for (int t = 0; t < kScaledTokens; ++t) {
    if (t >= tokens) return;
    const uint32_t own[kScaledRows] = {sums[t].x, sums[t].y, sums[t].z, sums[t].w};
    const float x_scale = a.x_scales[first + t];
    float y[kScaledRows];
    FS_UNROLL
    for (int i = 0; i < kScaledRows; ++i) {
      y[i] = fmaf(number<Sum>(own[i]) * x_scale, scale[i], bias[i]);
    }
    const uint32_t two[2] = {from_floats<Type>(y[0], y[1]), from_floats<Type>(y[2], y[3])};
    uint16_t* const to = a.y + (first + t) * a.y_stride + row;
    if (in_words) {
      store_global(reinterpret_cast<uint2*>(to), make_uint2(two[0], two[1]));
    } else {
      for (int i = 0; i < kScaledRows && row + i < a.rows; ++i) {
        store_global(to + i, static_cast<uint16_t>(two[i / 2] >> i % 2 * 16));
      }
    }
  }
}

}  // namespace flashsparse::mma_units
