// SPDX-License-Identifier: Apache-2.0
// Transposes x [tokens, cols] to x^T, padded with zeros to whole tiles of tokens and whole panels
// of columns.
//
// An outer product reads contiguous tokens. x^T is copied to shared memory 16 bytes at a time, and
// packing reads only the columns in its list; in x, a single column costs the 32-byte sectors that
// it shares with 7 others.
#pragma once
#include "common/memory.cuh"
#include "cuda/nm_spmm/linear_plan.h"

namespace flashsparse::nm_spmm {

inline constexpr int kTransposeThreads = 256;

// Launch with a block for each kTransposeTile columns (x) and tokens (y) of x^T [columns, stride].
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_kernel(const float* x, int64_t tokens, int64_t cols, float* xt, int64_t columns,
                     int64_t stride) {
  constexpr int kTile = kTransposeTile, kRows = kTransposeThreads / kTile;
  constexpr int kPitch = kTile + 1;  // in floats: a column lies in different banks
  FS_SHARED(float, tile, kTile* kPitch);
  const uint32_t shared = shared_address(tile);
  const int lane = threadIdx.x % kTile, first = threadIdx.x / kTile;
  const int64_t column = int64_t{blockIdx.x} * kTile, token = int64_t{blockIdx.y} * kTile;
  FS_UNROLL
  for (int i = first; i < kTile; i += kRows) {
    const bool inside = token + i < tokens && column + lane < cols;
    const float value = inside ? load_readonly(x + (token + i) * cols + column + lane) : 0.0f;
    store_shared(shared + (i * kPitch + lane) * uint32_t{sizeof(float)}, value);
  }
  __syncthreads();
  FS_UNROLL
  for (int i = first; i < kTile; i += kRows) {
    if (column + i < columns && token + lane < stride) {
      store_global(xt + (column + i) * stride + token + lane,
                   load_shared<float>(shared + (lane * kPitch + i) * uint32_t{sizeof(float)}));
    }
  }
}

}  // namespace flashsparse::nm_spmm
