// SPDX-License-Identifier: Apache-2.0
// What a kernel may use beyond plain CUDA, each thing with its emulated twin, so that one kernel
// source compiles under nvcc for the GPU and under g++ for the emulator.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#include <cuda_runtime.h>
// An array in shared memory, aligned for 16-byte vectors.
#define FS_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#else
#include "emulator/simt.h"
#define FS_SHARED(type, name, count) type* const name = simt::shared_array<type>(__LINE__, count)
#endif

namespace flashsparse {

// Stores to shared memory at a place where other threads may be storing the same value at the same
// time. Hardware needs nothing special; the race detector must be told that it is on purpose.
__device__ __forceinline__ void store_same(uint16_t* place, uint16_t value) {
#ifdef __CUDACC__
  *place = value;
#else
  __atomic_store_n(place, value, __ATOMIC_RELAXED);
#endif
}

}  // namespace flashsparse
