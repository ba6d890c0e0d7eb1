// SPDX-License-Identifier: Apache-2.0
// How blocks that share a result reduce it: each writes its partial sums to the workspace and
// increments an arrival counter, and the last to arrive adds up those of all, in their order. One
// launch, and the same bits every time.
#pragma once
#include "common/memory.cuh"

namespace flashsparse {

// Whether this block is the last to arrive, after `others` that share `counter`. The last one sees
// what all have written to global memory before, and leaves the counter at zero for the next
// launch. All threads call this; `flag`: shared address of a word.
__device__ __forceinline__ bool last_block(uint32_t* counter, uint32_t others, uint32_t flag) {
  __syncthreads();
  if (threadIdx.x == 0) store_shared(flag, arrive(counter));
  __syncthreads();
  if (load_shared<uint32_t>(flag) != others) return false;
  if (threadIdx.x == 0) *counter = 0;
  return true;
}

__device__ __forceinline__ float4 add(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Adds load(part, q) of all `parts` to sums[q], in their order. Loads of kAhead parts are in flight
// at once: a thread of the last block has little else to hide their latency with.
template <int kAhead = 4, int kMine, class Load>
__device__ __forceinline__ void add_in_order(float4 (&sums)[kMine], int parts, const Load& load) {
  FS_NO_UNROLL
  for (int begin = 0; begin < parts; begin += kAhead) {
    float4 ahead[kAhead][kMine];
    FS_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      FS_UNROLL
      for (int q = 0; q < kMine; ++q) {
        if (begin + i < parts) ahead[i][q] = load(begin + i, q);
      }
    }
    FS_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      FS_UNROLL
      for (int q = 0; q < kMine; ++q) {
        if (begin + i < parts) sums[q] = add(sums[q], ahead[i][q]);
      }
    }
  }
}

// load(part) of all `parts`, added up in their order.
template <class Load>
__device__ __forceinline__ float4 sum_in_order(int parts, const Load& load) {
  float4 sum[1] = {};
  add_in_order(sum, parts, [&](int part, int) { return load(part); });
  return sum[0];
}

}  // namespace flashsparse
