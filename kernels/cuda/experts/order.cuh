// SPDX-License-Identifier: Apache-2.0
// Orders the slots of a batch by expert, stably: a counting sort by one thread block. Each warp has
// a contiguous range of slots and counts those of each expert; the counts of the warps before it
// say where its own go. No atomic operation: the order is the same every time.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "cuda/experts/order_shape.h"
#include "cuda/experts/routing.h"
#include "cuda/shared/lanes.cuh"

namespace flashsparse::experts {

// The sum of the values of lanes up to this one.
__device__ __forceinline__ int sum_up_to_lane(int value) {
  const int lane = threadIdx.x % kLanes;
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const int before = __shfl_up_sync(kAllLanes, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

// Calls use(slot, expert, equal) for the slots [begin, end), 32 at a time; `equal`: the lanes with
// a slot of the same expert. All lanes take part; `expert` is -1 past the end.
template <class Use>
__device__ __forceinline__ void for_each_slot(const Routing& routing, int begin, int end,
                                              const Use& use) {
  FS_NO_UNROLL
  for (int first = begin; first < end; first += kLanes) {
    const int slot = first + static_cast<int>(threadIdx.x % kLanes);
    const int expert = slot < end ? routing.expert_of(slot) : -1;
    // -1 is a value of its own among 11 bits.
    use(slot, expert, order_of_lanes<11>(static_cast<uint32_t>(expert)).equal);
    __syncwarp();
  }
}

// One block of order_threads(routing.experts) threads; not launched with PDL.
__global__ void __launch_bounds__(kOrderThreads, 1)
    order_kernel(const Routing routing, const Order order, const int block_slots,
                 const int most_slots, const int most_blocks) {
  FS_SHARED(int, counts, kOrderCounters);  // [warp][expert]: slots, then those of the warps before
  FS_SHARED(int, first, kMostExperts);     // of each expert, the first of its blocks
  const int threads = blockDim.x, warps = threads / kLanes, experts = routing.experts;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  int* const own = counts + warp * experts;
  const int range = (routing.slots + warps * kLanes - 1) / (warps * kLanes) * kLanes;
  const int begin = min(warp * range, routing.slots), end = min(begin + range, routing.slots);
  FS_NO_UNROLL
  for (int i = threadIdx.x; i < warps * experts; i += threads) counts[i] = 0;
  griddepcontrol_launch_dependents();
  FS_NO_UNROLL
  for (int i = threadIdx.x; i < most_slots; i += threads) order.slots[i] = routing.slots;
  FS_NO_UNROLL
  for (int i = threadIdx.x; i < most_blocks; i += threads) order.experts[i] = -1;
  __syncthreads();

  for_each_slot(routing, begin, end, [&](int, int expert, uint32_t equal) {
    if (expert >= 0 && (equal & lanes_below(lane)) == 0) own[expert] += __popc(equal);
  });
  __syncthreads();

  // Where each expert begins: one warp, 32 experts at a time.
  if (warp == 0) {
    int blocks = 0;
    FS_NO_UNROLL
    for (int begin = 0; begin < experts; begin += kLanes) {
      const int expert = begin + lane;
      int slots = 0;
      if (expert < experts) {
        FS_NO_UNROLL
        for (int i = expert; i < warps * experts; i += experts) {
          const int more = counts[i];
          counts[i] = slots;
          slots += more;
        }
      }
      const int mine = (slots + block_slots - 1) / block_slots;
      const int up_to = blocks + sum_up_to_lane(mine);
      if (expert < experts) first[expert] = up_to - mine;
      FS_NO_UNROLL
      for (int i = up_to - mine; i < up_to; ++i) {
        order.experts[i] = expert;
        store_global(reinterpret_cast<uint2*>(order.spans) + i, make_uint2(up_to - mine, mine));
      }
      blocks = __shfl_sync(kAllLanes, up_to, kLanes - 1);
    }
    if (lane == 0) order.blocks[0] = blocks;
  }
  __syncthreads();

  for_each_slot(routing, begin, end, [&](int slot, int expert, uint32_t equal) {
    const uint32_t before = equal & lanes_below(lane);
    int place = 0;
    if (expert >= 0) place = own[expert];
    __syncwarp();
    if (expert < 0) return;
    order.slots[first[expert] * block_slots + place + __popc(before)] = slot;
    if (before == 0) own[expert] = place + __popc(equal);
  });
}

}  // namespace flashsparse::experts
