// SPDX-License-Identifier: Apache-2.0
// Primitives of clusters (sm_90): barriers, and accesses to the shared memory of other blocks.
// Blocks that are adjacent along x form a cluster, and are ranked in this order. Not called on
// GPUs before Hopper.
#pragma once
#include "common/device.cuh"
#include "common/mbarrier.cuh"

namespace flashsparse {

#ifdef __CUDACC__

// Barrier of all threads of the cluster, with release and acquire. No block may access another
// one's shared memory before the first such barrier, or after the other one may have ended.
__device__ __forceinline__ void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Relaxed, non-aligned barrier of the cluster: lanes may diverge, and nothing is released, which
// would wait for all outstanding writes. Use it after mbarrier_init_done, and before a block ends.
__device__ __forceinline__ void cluster_barrier_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Arrives once at the mbarrier with this address in block `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_in(uint32_t rank, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
#endif
}

// The same for a warp that has only read: without cluster-scope release of what it has written,
// which would take as long as a round trip to the L2.
__device__ __forceinline__ void mbarrier_release_in(uint32_t rank, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
#endif
}

// Stores to this address in block `rank` of the cluster.
__device__ __forceinline__ void store_shared_in(uint32_t rank, uint32_t address,
                                                const float4& value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n"
      "}" ::"r"(address),
      "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
#endif
}

// mbarrier_wait with cluster scope, for barriers at which other blocks arrive.
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// Loads from this address in block `rank` of the cluster.
__device__ __forceinline__ float4 load_shared_in(uint32_t rank, uint32_t address) {
  float4 value = {};
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
      "}"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(address), "r"(rank)
      : "memory");
#endif
  return value;
}

#else

inline void sync_cluster(simt::Place place = simt::Place::here()) { simt::sync_cluster(place); }
inline void cluster_barrier_relaxed(simt::Place place = simt::Place::here()) {
  simt::sync_cluster(place);
}

inline void mbarrier_arrive_in(uint32_t rank, uint32_t barrier,
                               simt::Place place = simt::Place::here()) {
  const simt::sanitizers::Unwatched unwatched;
  simt::Block& block = *simt::current->block->cluster.at(rank);
  simt::mbarrier_arrive(detail::mbarrier_at(block, barrier, "mbarrier_arrive_in", place));
}

inline void mbarrier_release_in(uint32_t rank, uint32_t barrier,
                                simt::Place place = simt::Place::here()) {
  mbarrier_arrive_in(rank, barrier, place);
}

inline void store_shared_in(uint32_t rank, uint32_t address, const float4& value,
                            simt::Place place = simt::Place::here()) {
  float4* to = nullptr;
  {
    const simt::sanitizers::Unwatched unwatched;
    simt::Block& block = *simt::current->block->cluster.at(rank);
    to =
        block.running ? reinterpret_cast<float4*>(block.shared.at(address, sizeof value)) : nullptr;
    if (!to || address % sizeof value != 0)
      simt::fail(
          "store_shared_in at shared address %#x of block %u of the cluster, which is %s (%s:%d)",
          address, rank, to ? "misaligned" : "out of bounds", place.file_name(), place.line);
    block.shared.stores.note(address, sizeof value,
                             simt::current->warp * simt::kWarpSize + simt::current->lane, place);
  }
  *to = value;
}

inline void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity,
                                  simt::Place place = simt::Place::here()) {
  mbarrier_wait(barrier, parity, place);
}

inline float4 load_shared_in(uint32_t rank, uint32_t address,
                             simt::Place place = simt::Place::here()) {
  const unsigned char* from = nullptr;
  {
    const simt::sanitizers::Unwatched unwatched;
    const simt::Block& block = *simt::current->block->cluster.at(rank);
    from = block.running ? block.shared.at(address, sizeof(float4)) : nullptr;
    if (!from || address % sizeof(float4) != 0)
      simt::fail(
          "load_shared_in at shared address %#x of block %u of the cluster, which is %s (%s:%d)",
          address, rank, from ? "misaligned" : "out of bounds", place.file_name(), place.line);
  }
  return *reinterpret_cast<const float4*>(from);
}

#endif

}  // namespace flashsparse
