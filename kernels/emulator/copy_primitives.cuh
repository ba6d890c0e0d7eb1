// SPDX-License-Identifier: Apache-2.0
// Part of primitives.cuh: copies to shared memory that complete at mbarriers, and clusters.
#pragma once
#include "common/bulk_copy.cuh"
#include "common/cluster.cuh"
#include "common/mbarrier.cuh"
#include "common/memory.cuh"

namespace flashsparse::primitives {

// in: 4 words for each of 32 lanes, three times; out: the same with lanes in reverse order. One
// warp copies to shared memory and the other reads, alternating in a single buffer.
inline constexpr int kTurns = 3;
__global__ void mbarriers(const uint32_t* in, uint32_t* out) {
  FS_DYNAMIC_SHARED(shared);
  const uint32_t place = shared_address(shared), full = place + 512, empty = full + kMbarrierBytes;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    mbarrier_init(full, 32);
    mbarrier_init(empty, 1);
  }
  __syncthreads();
  for (int turn = 0; turn < kTurns; ++turn) {
    if (threadIdx.x < 32) {
      if (turn > 0) mbarrier_wait(empty, (turn - 1) % 2);
      copy_async_hinted(place + lane * 16, in + (turn * 32 + lane) * 4, evict_first_policy());
      mbarrier_arrive_after_copies(full);
    } else {
      mbarrier_wait(full, turn % 2);
      const uint4 words = load_shared<uint4>(place + (31 - lane) * 16);
      store_global(reinterpret_cast<uint4*>(out + (turn * 32 + lane) * 4), words);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(empty);
    }
  }
}

// The same, where a warp copies 4 runs of 128 bytes.
__global__ void runs(const uint32_t* in, uint32_t* out) {
  FS_DYNAMIC_SHARED(shared);
  const uint32_t place = shared_address(shared), full = place + 512, empty = full + kMbarrierBytes;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    mbarrier_init(full, kRunArrivals);
    mbarrier_init(empty, 1);
    mbarrier_init_done();
  }
  __syncthreads();
  for (int turn = 0; turn < kTurns; ++turn) {
    if (threadIdx.x < 32) {
      mbarrier_wait(empty, turn % 2 ^ 1);
      expect_runs(full, 512);
      copy_runs(4, 128, full,
                [&](int i) { return Run{place + i * 128, in + turn * 128 + i * 32}; });
      arrive_after_runs(full);
    } else {
      mbarrier_wait(full, turn % 2);
      const uint4 words = load_shared<uint4>(place + (31 - lane) * 16);
      store_global(reinterpret_cast<uint4*>(out + (turn * 32 + lane) * 4), words);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(empty);
    }
  }
}

// in: 256 words; out: these words for each of two blocks of a cluster. Each block copies one half
// to both, and reads the second half from the other's shared memory.
__global__ void clusters(const uint32_t* in, uint32_t* out) {
  FS_DYNAMIC_SHARED(shared);
  const uint32_t place = shared_address(shared), full = place + 1024, done = full + kMbarrierBytes;
  const int lane = threadIdx.x;
  const uint32_t rank = blockIdx.x, other = rank ^ 1;
  if (lane == 0) {
    mbarrier_init(full, kRunArrivals);
    mbarrier_init(done, 1);
    mbarrier_init_done();
  }
  sync_cluster();
  expect_runs(full, 1024);
  copy_runs(2, 512, full, [&](int i) { return Run{place + i * 512, in + i * 128}; });
  arrive_after_runs(full);
  mbarrier_wait(full, 0);
  store_global(reinterpret_cast<uint4*>(out + rank * 256 + lane * 4),
               load_shared<uint4>(place + lane * 16));
  __syncwarp();
  if (lane == 0) mbarrier_arrive_in(other, done);
  mbarrier_wait_cluster(done, 0);
  const float4 there = load_shared_in(other, place + 512 + lane * 16);
  store_global(reinterpret_cast<float4*>(out + rank * 256 + 128 + lane * 4), there);
  sync_cluster();
}

}  // namespace flashsparse::primitives
