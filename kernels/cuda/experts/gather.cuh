// SPDX-License-Identifier: Apache-2.0
// The rows of x in the order of slots, so that a block of slots is a tile of a tensor map; with
// them the weights of the router, and where each slot has its place.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "cuda/experts/gather.h"

namespace flashsparse::experts {

// A warp for each place. Launch with gather_blocks(most_slots) blocks of kGatherThreads.
__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(const Gather gather, const int most_slots) {
  const int place = static_cast<int>((blockIdx.x * kGatherThreads + threadIdx.x) / 32);
  const int lane = threadIdx.x % 32;
  griddepcontrol_wait();
  // Only now: the kernels that follow read the order without waiting.
  griddepcontrol_launch_dependents();
  if (place >= most_slots) return;
  const int slot = gather.order.slots[place];
  if (slot >= gather.slots) return;
  if (lane == 0) {
    gather.places[slot] = place;
    gather.place_weights[place] = gather.weights[slot];
  }
  const int vectors = gather.stride / 8;
  const auto* const from =
      reinterpret_cast<const uint4*>(gather.x) + int64_t{gather.by_top_k(slot)} * vectors;
  auto* const to = reinterpret_cast<uint4*>(gather.rows) + int64_t{place} * vectors;
  FS_UNROLL_BY(4)
  for (int i = lane; i < vectors; i += 32) store_global(to + i, from[i]);
}

}  // namespace flashsparse::experts
