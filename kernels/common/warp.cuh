// SPDX-License-Identifier: Apache-2.0
// Barriers of a part of a block. CUDA's own warp functions (__syncwarp, __shfl_*_sync,
// __ballot_sync, ...) come with device.cuh.
#pragma once
#include "common/device.cuh"

namespace flashsparse {

// Waits until `threads` threads, whole warps, have arrived at named barrier `barrier` of the block,
// 1 to 15. Orders memory as __syncthreads does, which is barrier 0.
#ifdef __CUDACC__
__device__ __forceinline__ void sync_threads_of(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
#else
inline void sync_threads_of(int barrier, int threads, simt::Place place = simt::Place::here()) {
  simt::sync_threads_of(barrier, threads, place);
}
#endif

}  // namespace flashsparse
