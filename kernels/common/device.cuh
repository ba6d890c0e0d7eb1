// SPDX-License-Identifier: Apache-2.0
// What every kernel includes: CUDA, or the emulator in its place, so that one kernel source
// compiles under nvcc for the GPU and under g++ for the tests. Beyond plain CUDA a kernel may use
// what these headers give it, each inline-PTX primitive once with its emulated twin beside it:
//   memory.cuh   loads, stores, asynchronous copies, arrival
//   mbarrier.cuh  barriers in shared memory, at which copies arrive too
//   bulk_copy.cuh  copies of whole runs that arrive there
//   cluster.cuh  what blocks of a cluster do together
//   mma.cuh      tensor cores and their operands
//   mma_sparse.cuh  tensor cores that skip half of the columns
//   wgmma.cuh    tensor cores of Hopper, fed from shared memory
//   warp.cuh     barriers of a part of a block
//   integer.cuh  byte permutations and dot products
//   widen.cuh    codes of 8 and 4 bits as 16-bit floats
//   float32.cuh  exponential and reciprocal
//   wgmma_sparse.cuh  the same, skipping half of the columns of an A in registers
//   tensor_map.cuh  copies of tiles of a matrix to the blocks of a cluster
//   registers.cuh  what the compiler should keep
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#include <cuda_runtime.h>
// An array in shared memory, aligned for 16-byte vectors.
#define FS_SHARED(type, name, count) __shared__ __align__(16) type name[count]
// The block's dynamic shared memory, as large as the launch says: unsigned char* name.
#define FS_DYNAMIC_SHARED(name)                                           \
  extern __shared__ __align__(1024) unsigned char flashsparse_dynamic_[]; \
  unsigned char* const name = flashsparse_dynamic_
#define FS_UNROLL _Pragma("unroll")
#define FS_NO_UNROLL _Pragma("unroll 1")
#define FS_PRAGMA(text) _Pragma(#text)
#define FS_UNROLL_BY(count) FS_PRAGMA(unroll count)
#else
#include "emulator/simt.h"
#define FS_SHARED(type, name, count) \
  type* const name = simt::shared_array<type>(simt::Place::here(__FILE__, __LINE__), count)
#define FS_DYNAMIC_SHARED(name) unsigned char* const name = simt::dynamic_shared()
#define FS_UNROLL
#define FS_NO_UNROLL
#define FS_UNROLL_BY(count)
#endif
