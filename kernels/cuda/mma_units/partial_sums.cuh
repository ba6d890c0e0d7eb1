// SPDX-License-Identifier: Apache-2.0
// How warps of different blocks, or clusters, that share a tile reduce its accumulators: each
// writes its own to the workspace and increments an arrival counter, and the last to arrive adds up
// those of all, in their order. One launch, and the same bits every time.
#pragma once
#include "common/memory.cuh"
#include "cuda/mma_units/moved_sums.cuh"

namespace flashsparse::mma_units {

// True for the last to arrive of the sharers `first` to `last`, which then has the sums of all. It
// leaves the counter at zero for the next launch.
// counter(): theirs, a call since its address would cost registers while sums are stored.
// part(sharer): where the lane's partial sums are, 4 * kFours of them, 32 float4 from four to four.
// is_used(four): whether these four are of any token. kAtOnce of them are loaded at a time, as many
// as registers allow.
template <int kFours, int kAtOnce, class Sum, class Counter, class Part, class IsUsed>
__device__ __forceinline__ bool reduce(Sum* sums, const Counter& counter, int own, int first,
                                       int last, const Part& part, const IsUsed& is_used) {
  float4* const mine = part(own);
  FS_UNROLL
  for (int i = 0; i < kFours; ++i) {
    if (is_used(i)) store_global(mine + i * 32, moved(sums + 4 * i));
  }
  uint32_t* const arrivals = counter();
  __syncwarp();
  uint32_t before = 0;
  if (threadIdx.x % 32 == 0) before = arrive(arrivals);
  before = __shfl_sync(~0u, before, 0);
  __syncwarp();
  if (before != static_cast<uint32_t>(last - first)) return false;
  if (threadIdx.x % 32 == 0) *arrivals = 0;
  FS_UNROLL
  for (int begin = 0; begin < kFours; begin += kAtOnce) {
    if (!is_used(begin)) break;
    float4 added[kAtOnce] = {};
    FS_NO_UNROLL
    for (int sharer = first; sharer <= last; ++sharer) {
      const float4* const theirs = part(sharer) + begin * 32;
      FS_UNROLL
      for (int i = 0; i < kAtOnce; ++i) added[i] = joined<Sum>(added[i], load_l2(theirs + i * 32));
    }
    FS_UNROLL
    for (int i = 0; i < kAtOnce; ++i) arrived(sums + (begin + i) * 4, added[i]);
  }
  return true;
}

}  // namespace flashsparse::mma_units
