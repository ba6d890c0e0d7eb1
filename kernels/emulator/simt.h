// SPDX-License-Identifier: Apache-2.0
// SIMT emulator: compiles a CUDA kernel with g++ and runs it on the CPU, each CUDA thread on a
// fiber. Tests only. Data races between barriers show under -fsanitize=thread, errors of bounds and
// alignment under -fsanitize=address,undefined, and dependence on the order of execution under
// different schedules (see `launch` in scheduler.h). What no GPU allows, such as a barrier that
// some threads never reach, ends the program with exit code 3 and a message.
//
//   simt.h         CUDA's names
//   scheduler.h    the order of execution
//   block.h        blocks, warps, threads, and their barriers
//   fiber.h        stacks and the switch between them
//   collectives.h  barriers, and collectives of lanes
//   memory.h       shared memory and asynchronous copies
//   products.h     wgmma in flight, and stores that it does not see yet
//   statistics.h   bank conflicts and sectors, by source line
//   last_kernel.h  the kernel before a launch with PDL, which ends late
//   sanitizers.h   how the sanitizers are informed about fibers
//
// It is stricter than CUDA where kernels do not need the freedom: no lane named in a mask may have
// ended, all threads of a block call __syncthreads at the same line, an address given to an
// asynchronous copy is aligned even if nothing is read. Threads run until they wait, so one that
// polls memory never ends.
//
// The twins of inline PTX are next to it in kernels/common. Compile with -fno-strict-aliasing, as
// nvcc compiles device code.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "emulator/collectives.h"
#include "emulator/memory.h"
#include "emulator/scheduler.h"

#define __global__
#define __grid_constant__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)

using simt::blockDim;
using simt::blockIdx;
using simt::dim3;
using simt::gridDim;
using simt::threadIdx;
using std::max;
using std::min;

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace simt {

// Kernels take the paths of a GPU of this compute capability, without the point: 90, or the
// environment variable ARCHITECTURE. Instructions are not limited to it.
inline const int architecture =
    std::getenv("ARCHITECTURE") ? std::atoi(std::getenv("ARCHITECTURE")) : 90;

template <class T>
T* shared_array(Place place, size_t count) {
  const sanitizers::Unwatched unwatched;
  return static_cast<T*>(current->block->shared.array(place, count * sizeof(T)));
}
inline unsigned char* dynamic_shared() {
  const sanitizers::Unwatched unwatched;
  return static_cast<unsigned char*>(current->block->shared.dynamic());
}

}  // namespace simt

inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline uint32_t __brev(uint32_t bits) {
  uint32_t reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (bits >> i & 1) << (31 - i);
  return reversed;
}

// Atomics do not order other memory, like CUDA's.
inline int atomicAdd(int* place, int value) {
  return __atomic_fetch_add(place, value, __ATOMIC_RELAXED);
}
inline uint32_t atomicAdd(uint32_t* place, uint32_t value) {
  return __atomic_fetch_add(place, value, __ATOMIC_RELAXED);
}
inline uint32_t atomicOr(uint32_t* place, uint32_t value) {
  return __atomic_fetch_or(place, value, __ATOMIC_RELAXED);
}
inline float atomicAdd(float* place, float value) {
  uint32_t* const bits = reinterpret_cast<uint32_t*>(place);
  uint32_t old = __atomic_load_n(bits, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(bits, &old, __float_as_uint(__uint_as_float(old) + value),
                                      false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return __uint_as_float(old);
}
inline uint32_t atomicMax(uint32_t* place, uint32_t value) {
  uint32_t old = __atomic_load_n(place, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(place, &old, max(old, value), false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return old;
}

// Fibers of one CPU thread see each other's stores at once, and the thread sanitizer has no fences:
// blocks are ordered by flashsparse::arrive.
inline void __threadfence() {}

inline void __syncthreads(simt::Place place = simt::Place::here()) { simt::sync_threads(place); }

// The only warp function that orders the memory of its lanes.
inline void __syncwarp(uint32_t mask = ~uint32_t{0}, simt::Place place = simt::Place::here()) {
  int nothing = 0;
  simt::current->visible = simt::current->fenced;
  simt::collective(mask, "__syncwarp", simt::Lines::kAny, simt::Order::kMemory, place, nothing,
                   [](auto, uint32_t) {});
}

namespace simt {

// Every lane of the mask gets the value of lane source(lane), which must be in the mask.
template <class T, class Source>
T shuffle(uint32_t mask, T value, int width, const char* name, Place place, Source source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "as CUDA's");
  if (width < 1 || width > 32 || (width & (width - 1)) != 0)
    fail("%s with width %d, which is no power of two up to 32 (%s:%d)", name, width,
         place.file_name(), place.line);
  struct Argument {
    T given, taken;
    int source;
  } argument{value, value, source(static_cast<int>(current->lane))};
  collective(mask, name, Lines::kAny, Order::kNone, place, argument,
             [&](auto lanes, uint32_t present) SIMT_UNWATCHED {
               for (unsigned lane = 0; lane < kWarpSize; ++lane) {
                 if (!(present >> lane & 1)) continue;
                 const int from = lanes[lane]->source;
                 if (!(present >> from & 1))
                   fail("lane %u reads lane %d, which is not in the mask %#x of its %s (%s:%d)",
                        lane, from, present, name, place.file_name(), place.line);
                 lanes[lane]->taken = lanes[from]->given;
               }
             });
  return argument.taken;
}

}  // namespace simt

template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32,
              simt::Place place = simt::Place::here()) {
  return simt::shuffle(mask, value, width, "__shfl_sync", place,
                       [=](int lane) { return (lane & ~(width - 1)) | (source & (width - 1)); });
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                 simt::Place place = simt::Place::here()) {
  return simt::shuffle(mask, value, width, "__shfl_up_sync", place, [=](int lane) {
    const int inside = lane & (width - 1), from = inside - static_cast<int>(delta);
    return from < 0 ? lane : lane - inside + from;
  });
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                   simt::Place place = simt::Place::here()) {
  return simt::shuffle(mask, value, width, "__shfl_down_sync", place, [=](int lane) {
    const int inside = lane & (width - 1), from = inside + static_cast<int>(delta);
    return from >= width ? lane : lane - inside + from;
  });
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32,
                  simt::Place place = simt::Place::here()) {
  return simt::shuffle(mask, value, width, "__shfl_xor_sync", place, [=](int lane) {
    const int from = lane ^ lanes;  // a group may read an earlier group, never a later one
    return from >= (lane & ~(width - 1)) + width ? lane : from;
  });
}

inline uint32_t __ballot_sync(uint32_t mask, int predicate,
                              simt::Place place = simt::Place::here()) {
  uint32_t vote = predicate != 0;
  simt::collective(mask, "vote", simt::Lines::kAny, simt::Order::kNone, place, vote,
                   [](auto lanes, uint32_t present) SIMT_UNWATCHED {
                     uint32_t ballot = 0;
                     for (unsigned lane = 0; lane < simt::kWarpSize; ++lane)
                       if (present >> lane & 1) ballot |= *lanes[lane] << lane;
                     for (unsigned lane = 0; lane < simt::kWarpSize; ++lane)
                       if (present >> lane & 1) *lanes[lane] = ballot;
                   });
  return vote;
}
inline int __any_sync(uint32_t mask, int predicate, simt::Place place = simt::Place::here()) {
  return __ballot_sync(mask, predicate, place) != 0;
}
inline int __all_sync(uint32_t mask, int predicate, simt::Place place = simt::Place::here()) {
  return __ballot_sync(mask, predicate, place) == mask;
}
