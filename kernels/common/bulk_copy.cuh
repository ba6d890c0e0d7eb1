// SPDX-License-Identifier: Apache-2.0
// Bulk copies from global to shared memory that complete at an mbarrier (mbarrier.cuh): one
// instruction for each contiguous run on Hopper and later (cp.async.bulk), 16 bytes a lane by
// cp.async elsewhere.
//
// All lanes of the warp that copies call together: expect_runs, copy_runs and any copy_async,
// arrive_after_runs. Such a barrier is initialized for kRunArrivals arrivals a phase.
#pragma once
#include "common/device.cuh"
#include "common/mbarrier.cuh"
#include "common/memory.cuh"

namespace flashsparse {

#ifndef __CUDACC__
inline const bool kBulkCopies = simt::architecture >= 90;
#elif __CUDA_ARCH__ >= 900
inline constexpr bool kBulkCopies = true;
#else
inline constexpr bool kBulkCopies = false;
#endif

// One arrival of each lane, for copy_async, and one with the bytes of bulk copies.
inline const int kRunArrivals = 32 + kBulkCopies;

struct Run {
  uint32_t shared;
  const void* global;
};

// Completes a thread's loads from shared memory before it arrives at the barrier that lets bulk
// copies overwrite what it has read. The arrival alone is not enough: on an H200, loads that were
// still queued read data of the copy.
#ifdef __CUDACC__
__device__ __forceinline__ void finish_reads() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
#else
inline void finish_reads() {}
#endif

namespace detail {

#ifdef __CUDACC__

// Arrives once; the phase does not end before copy_bulk has copied `bytes` more.
__device__ __forceinline__ void mbarrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b64 state;\n"
      "mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n"
      "}" ::"r"(barrier),
      "r"(bytes)
      : "memory");
#endif
}

// copy_bulk with an L2 cache hint.
__device__ __forceinline__ void copy_bulk_hinted(uint32_t shared, const void* global,
                                                 uint32_t bytes, uint32_t barrier,
                                                 uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
#endif
}

// Starts a bulk copy of `bytes`, a multiple of 16, both addresses 16-byte aligned; the barrier
// counts the bytes.
__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, uint32_t bytes,
                                          uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

#else

inline void mbarrier_arrive_expecting(uint32_t barrier, uint32_t bytes,
                                      simt::Place place = simt::Place::here()) {
  const simt::sanitizers::Unwatched unwatched;
  simt::Mbarrier& at = mbarrier_at(barrier, "mbarrier_arrive_expecting", place);
  at.bytes += bytes;
  simt::mbarrier_arrive(at);
}

// The copy lands when a thread waits for it, at the last moment that a GPU allows.
inline void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier,
                      simt::Place place = simt::Place::here()) {
  simt::AsyncCopies copy;
  unsigned char* to = nullptr;
  {
    const simt::sanitizers::Unwatched unwatched;
    to = simt::current->block->shared.at(shared, bytes);
    if (!to || shared % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0)
      simt::fail("copy_bulk of %u bytes from %p to shared address %#x, which is %s (%s:%d)", bytes,
                 global, shared, to ? "misaligned" : "out of bounds", place.file_name(),
                 place.line);
  }
  copy.start(to, static_cast<const unsigned char*>(global), bytes, place);
  const simt::sanitizers::Unwatched unwatched;
  simt::Mbarrier& at = mbarrier_at(barrier, "copy_bulk", place);
  at.bytes -= bytes;
  at.copies.take_over(copy);
  simt::sanitizers::release(at.order(at.phases));
  simt::mbarrier_end_phase(at);
}

inline void copy_bulk_hinted(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier,
                             uint64_t, simt::Place place = simt::Place::here()) {
  copy_bulk(shared, global, bytes, barrier, place);
}

#endif

}  // namespace detail

// `bytes`: of all runs of this phase.
__device__ __forceinline__ void expect_runs(uint32_t barrier, uint32_t bytes) {
  if (kBulkCopies && threadIdx.x % 32 == 0) detail::mbarrier_arrive_expecting(barrier, bytes);
}

// Starts to copy `count` runs of `bytes` each, a multiple of 16. run(i) returns run i, 16-byte
// aligned.
template <class RunOf>
__device__ __forceinline__ void copy_runs(int count, uint32_t bytes, uint32_t barrier, RunOf run) {
  const uint32_t lane = threadIdx.x % 32;
  if (kBulkCopies) {
    FS_NO_UNROLL
    for (int i = lane; i < count; i += 32) {
      const Run own = run(i);
      detail::copy_bulk(own.shared, own.global, bytes, barrier);
    }
  } else {
    FS_NO_UNROLL
    for (int i = 0; i < count; ++i) {
      const Run own = run(i);
      FS_UNROLL_BY(4)
      for (uint32_t at = lane * 16; at < bytes; at += 32 * 16) {
        copy_async<16>(own.shared + at, static_cast<const unsigned char*>(own.global) + at, true);
      }
    }
  }
}

// The phase ends when all that the warp has copied for it has landed.
__device__ __forceinline__ void arrive_after_runs(uint32_t barrier) {
  mbarrier_arrive_after_copies(barrier);
}

// The same for runs of different sizes that are read once. Such a barrier is initialized for
// kOnceArrivals arrivals a phase. All lanes of the warp call together: expect_once with the bytes
// of all runs, copy_once for each, arrive_after_once.
inline const int kOnceArrivals = kBulkCopies ? 1 : 32;

__device__ __forceinline__ void expect_once(uint32_t barrier, uint32_t bytes) {
  expect_runs(barrier, bytes);
}
__device__ __forceinline__ void copy_once(Run run, uint32_t bytes, uint32_t barrier,
                                          uint64_t policy) {
  const uint32_t lane = threadIdx.x % 32;
  if (kBulkCopies) {
    if (lane == 0) detail::copy_bulk_hinted(run.shared, run.global, bytes, barrier, policy);
  } else {
    FS_UNROLL_BY(4)
    for (uint32_t at = lane * 16; at < bytes; at += 32 * 16) {
      copy_async_hinted(run.shared + at, static_cast<const unsigned char*>(run.global) + at,
                        policy);
    }
  }
}
__device__ __forceinline__ void arrive_after_once(uint32_t barrier) {
  if (!kBulkCopies) mbarrier_arrive_after_copies(barrier);
}

}  // namespace flashsparse
