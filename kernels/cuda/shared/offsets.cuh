// SPDX-License-Identifier: Apache-2.0
// The offsets of the parts of a packed weight, from their lengths: an exclusive prefix sum.
//
// Every block adds up all lengths before its own 4096, so that blocks need not wait for each other.
// It reads them from the L2.
#pragma once
#include "common/memory.cuh"
#include "cuda/shared/lanes.cuh"

namespace flashsparse {

inline constexpr int kOffsetThreads = 1024;
inline constexpr int kThreadLengths = 4;
inline constexpr int kBlockLengths = kOffsetThreads * kThreadLengths;

// Writes offsets[i] = lengths[0] + ... + lengths[i - 1] for i = 0 to `parts`. `total` is the sum of
// all in 64 bits: if it exceeds int32, the offsets are invalid. Launch with ceil(parts /
// kBlockLengths) blocks of kOffsetThreads; `lengths` is 16-byte aligned.
__global__ void __launch_bounds__(kOffsetThreads)
    offsets_kernel(const int32_t* __restrict__ lengths, int64_t parts,
                   int32_t* __restrict__ offsets, int64_t* __restrict__ total) {
  constexpr int kWarps = kOffsetThreads / kLanes;
  FS_SHARED(int64_t, before_of_warp, kWarps);
  FS_SHARED(int32_t, own_of_warp, kWarps);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockLengths;
  const int64_t begin = first + threadIdx.x * kThreadLengths;  // first of this thread's lengths

  int64_t before = 0;
  const uint4* const vectors = reinterpret_cast<const uint4*>(lengths);
  FS_UNROLL_BY(4)
  for (int64_t i = threadIdx.x; i < first / kThreadLengths; i += kOffsetThreads) {
    const uint4 four = load_readonly(vectors + i);
    before += static_cast<int64_t>(four.x) + four.y + four.z + four.w;
  }
  int32_t own[kThreadLengths], sum = 0;
  FS_UNROLL
  for (int i = 0; i < kThreadLengths; ++i) {
    own[i] = begin + i < parts ? lengths[begin + i] : 0;
    sum += own[i];
  }

  before = reduce_lanes(before, [](int64_t a, int64_t b) { return a + b; });
  int32_t end = sum;  // sum of the warp's lengths up to this thread's last
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const int32_t lower = __shfl_up_sync(kAllLanes, end, distance);
    if (lane >= distance) end += lower;
  }
  if (lane == kLanes - 1) {
    before_of_warp[warp] = before;
    own_of_warp[warp] = end;
  }
  __syncthreads();
  int64_t offset = end - sum;
  for (int w = 0; w < kWarps; ++w) {
    offset += before_of_warp[w];
    if (w < warp) offset += own_of_warp[w];
  }

  FS_UNROLL
  for (int i = 0; i < kThreadLengths; ++i) {
    if (begin + i < parts) offsets[begin + i] = static_cast<int32_t>(offset);
    offset += own[i];
    if (begin + i == parts - 1) {
      offsets[parts] = static_cast<int32_t>(offset);
      *total = offset;
    }
  }
}

}  // namespace flashsparse
