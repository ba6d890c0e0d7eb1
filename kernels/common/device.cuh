// SPDX-License-Identifier: Apache-2.0
// Included by every kernel: CUDA, or the emulator in its place, so that the same source compiles
// under nvcc for a GPU and under g++ for the tests. Beyond plain CUDA, kernels use only the headers
// of this folder, where each inline-PTX primitive stands once, next to its emulated twin:
//   memory.cuh        loads, stores, asynchronous copies, arrival counters, PDL
//   mbarrier.cuh      barriers in shared memory
//   bulk_copy.cuh     bulk copies that complete at them
//   tensor_map.cuh    copies of tiles of a matrix to the blocks of a cluster
//   cluster.cuh       barriers of a cluster, and its distributed shared memory
//   mma.cuh           tensor cores and their operands
//   mma_sparse.cuh    2:4 sparse tensor cores
//   wgmma*.cuh        Hopper's tensor cores: operands in shared memory or registers, sparse A
//   warp.cuh          barriers of a part of a block
//   integer.cuh       byte permutations and dot products
//   narrow.cuh        quantizes floats to 8 bits
//   widen.cuh         converts 8-bit and 4-bit values to 16-bit floats
//   float32.cuh       exponential and reciprocal
//   registers.cuh     keeps values in registers; setmaxnreg
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#include <cuda_runtime.h>
// An array in shared memory, aligned for 16-byte vectors.
#define FS_SHARED(type, name, count) __shared__ __align__(16) type name[count]
// The block's dynamic shared memory, of the size given at launch: unsigned char* name.
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
