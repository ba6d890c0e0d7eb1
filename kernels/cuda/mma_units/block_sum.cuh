// SPDX-License-Identifier: Apache-2.0
// A sum over all threads of a block.
#pragma once
#include "common/device.cuh"

namespace flashsparse::mma_units {

// The sum over `threads` threads, whole warps, modulo 2^32. Only thread 0 gets it.
template <int threads>
__device__ __forceinline__ uint32_t block_sum(uint32_t sum) {
  FS_SHARED(uint32_t, of_warps, threads / 32);
  FS_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return 0;
  FS_UNROLL
  for (int warp = 1; warp < threads / 32; ++warp) sum += of_warps[warp];
  return sum;
}

}  // namespace flashsparse::mma_units
