// SPDX-License-Identifier: Apache-2.0
// SIMT emulator: compiles a CUDA kernel with g++ and runs it on the CPU, one fiber a CUDA thread.
// Tests only. What a kernel gets wrong between barriers shows under -fsanitize=thread, what it gets
// wrong about bounds and alignment under -fsanitize=address,undefined, and what it gets wrong about
// order under different schedules (see `launch` in scheduler.h).
//
//   simt.h        CUDA's spellings
//   scheduler.h   fibers, blocks, the barrier
//   memory.h      shared memory
//   sanitizers.h  what the sanitizers must be told about fibers
//
// Compile with -fno-strict-aliasing, as nvcc compiles device code. Blocks run one after the other,
// so a race between two blocks is not seen.
#pragma once
#include <algorithm>
#include <cstdint>

#include "emulator/memory.h"
#include "emulator/scheduler.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

using simt::blockDim;
using simt::blockIdx;
using simt::dim3;
using simt::gridDim;
using simt::threadIdx;
using std::min;

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

template <class T>
T __ldcs(const T* place) {
  return *place;
}

inline void __syncthreads(int line = __builtin_LINE()) { simt::barrier(line); }
