// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory (PTX mbarrier), at which threads arrive and asynchronous copies
// complete. A phase ends when the barrier has had the number of arrivals that it was initialized
// for; then the next one begins. A waiting thread gives the parity of the phase, 0 for the first.
// What a thread did before it arrived is visible to those that have waited for that phase. 8 bytes
// each, aligned.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"

namespace flashsparse {

inline constexpr uint32_t kMbarrierBytes = 8;

#ifdef __CUDACC__

// Initializes a barrier for `arrivals` arrivals a phase. Other threads may use it after a barrier
// of theirs, such as __syncwarp or __syncthreads.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Call between mbarrier_init and that barrier of the threads, if bulk copies or other blocks of the
// cluster arrive at the mbarrier.
__device__ __forceinline__ void mbarrier_init_done() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Arrives once.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 state;\n"
      "mbarrier.arrive.shared.b64 state, [%0];\n"
      "}" ::"r"(barrier)
      : "memory");
}

// Arrives once, when all copy_async that this thread has started so far have landed. They need no
// other wait, and belong to no group.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of this parity has ended. Call it at most one phase late.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.test_wait.parity.shared.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

#else

namespace detail {

// The barrier at an address in a block's shared memory; `operation` is for messages.
inline simt::Mbarrier& mbarrier_at(simt::Block& block, uint32_t address, const char* operation,
                                   simt::Place place) {
  if (!block.running)
    simt::fail("%s in a block that has ended (%s:%d)", operation, place.file_name(), place.line);
  if (address % kMbarrierBytes != 0 || !block.shared.at(address, kMbarrierBytes))
    simt::fail("%s at shared address %#x, which is misaligned or out of bounds (%s:%d)", operation,
               address, place.file_name(), place.line);
  const auto found = block.mbarriers.find(address);
  if (found == block.mbarriers.end())
    simt::fail("%s at shared address %#x, where there is no barrier (%s:%d)", operation, address,
               place.file_name(), place.line);
  return found->second;
}
inline simt::Mbarrier& mbarrier_at(uint32_t address, const char* operation, simt::Place place) {
  return mbarrier_at(*simt::current->block, address, operation, place);
}

}  // namespace detail

inline void mbarrier_init(uint32_t barrier, int arrivals, simt::Place place = simt::Place::here()) {
  const simt::sanitizers::Unwatched unwatched;
  if (arrivals < 1) simt::fail("a barrier of no arrivals (%s:%d)", place.file_name(), place.line);
  simt::Mbarrier& made = simt::current->block->mbarriers[barrier];
  made = {};
  made.expected = made.missing = arrivals;
  detail::mbarrier_at(barrier, "mbarrier_init", place);
}

inline void mbarrier_init_done() {}

inline void mbarrier_arrive(uint32_t barrier, simt::Place place = simt::Place::here()) {
  const simt::sanitizers::Unwatched unwatched;
  simt::mbarrier_arrive(detail::mbarrier_at(barrier, "mbarrier_arrive", place));
}

// The copies land when a thread waits for them, at the last moment that a GPU allows.
inline void mbarrier_arrive_after_copies(uint32_t barrier,
                                         simt::Place place = simt::Place::here()) {
  const simt::sanitizers::Unwatched unwatched;
  simt::Mbarrier& at = detail::mbarrier_at(barrier, "mbarrier_arrive_after_copies", place);
  at.copies.take_over(simt::current->copies);
  simt::mbarrier_arrive(at);
}

inline void mbarrier_wait(uint32_t barrier, uint32_t parity,
                          simt::Place place = simt::Place::here()) {
  simt::Mbarrier* at;
  {
    const simt::sanitizers::Unwatched unwatched;
    at = &detail::mbarrier_at(barrier, "mbarrier_wait", place);
    simt::mbarrier_wait(*at, parity, place);
  }
  at->copies.land_all();  // in this thread's name, so that the race detector sees it
  const simt::sanitizers::Unwatched unwatched;
  simt::sanitizers::release(at->order(parity));
}

#endif

}  // namespace flashsparse
