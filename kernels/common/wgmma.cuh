// SPDX-License-Identifier: Apache-2.0
// Hopper's tensor core instruction (sm_90a): four warps, a warpgroup, multiply 64 rows of A by B,
// both read from shared memory by the hardware while the warps go on.
//
// Operands are K-major tiles of rows of 64 16-bit elements, 128 bytes, whose 16-byte chunks are
// XOR-swizzled by the row modulo 8, on 1024 bytes: "128-byte swizzle" to the hardware, and the
// layout of a Tiled-CSL tile. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate".
#pragma once
#include "common/device.cuh"
#include "common/mma.cuh"

namespace flashsparse {

#ifdef __CUDACC__

// Describes the operand at a shared address, a multiple of 1024.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;  // from 8 rows to the next 8
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}

// The operand `bytes` further on, a multiple of 16.
__device__ __forceinline__ uint64_t wgmma_moved(uint64_t operand, uint32_t bytes) {
  return operand + bytes / 16;
}

// Makes this thread's stores and copies to shared memory visible to wgmma. Each thread that wrote
// calls it, before the barrier that the readers wait at.
__device__ __forceinline__ void fence_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Before the first wgmma of a batch: orders it after what the warps did to its registers.
__device__ __forceinline__ void wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Ends a batch.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until every batch of this warp is done: `d` may be read and the operands overwritten.
template <int count>
__device__ __forceinline__ void wgmma_wait(float (&d)[count]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  FS_UNROLL
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d [64, tokens] += a [64, 16] times b [tokens, 16] transposed. Of the 64 rows warp w of the
// warpgroup holds 16 w to 16 w + 15: d[4 j + 2 r + c] of lane l is row 16 w + l / 4 + 8 r and column
// 8 j + l % 4 * 2 + c. tokens is 8, 16, 32 or 64.
template <class Type, int tokens>
__device__ __forceinline__ void wgmma(float (&d)[tokens / 2], uint64_t a, uint64_t b);

#define FS_WGMMA(Type, name, tokens, list, a, b, ...)                                         \
  template <>                                                                                \
  __device__ __forceinline__ void wgmma<Type, tokens>(float (&d)[tokens / 2], uint64_t left, \
                                                      uint64_t right) {                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #tokens "k16.f32." name "." name        \
                 " {" list "}, %" #a ", %" #b ", 1, 1, 1, 0, 0;"                              \
                 : __VA_ARGS__                                                               \
                 : "l"(left), "l"(right));                                                   \
  }
#define FS_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FS_D16(i) FS_D4(i), FS_D4(i + 4), FS_D4(i + 8), FS_D4(i + 12)
#define FS_L8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FS_L16 FS_L8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FS_L32 \
  FS_L16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FS_WGMMA_TYPE(Type, name)                                                   \
  FS_WGMMA(Type, name, 8, "%0, %1, %2, %3", 4, 5, FS_D4(0))                          \
  FS_WGMMA(Type, name, 16, FS_L8, 8, 9, FS_D4(0), FS_D4(4))                          \
  FS_WGMMA(Type, name, 32, FS_L16, 16, 17, FS_D16(0))                                \
  FS_WGMMA(Type, name, 64, FS_L32, 32, 33, FS_D16(0), FS_D16(16))
FS_WGMMA_TYPE(Float16, "f16")
FS_WGMMA_TYPE(BFloat16, "bf16")
#undef FS_WGMMA_TYPE
#undef FS_L32
#undef FS_L16
#undef FS_L8
#undef FS_D16
#undef FS_D4
#undef FS_WGMMA

#endif

}  // namespace flashsparse
