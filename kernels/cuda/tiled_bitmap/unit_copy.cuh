// SPDX-License-Identifier: Apache-2.0
// Copies a unit of tiled_bitmap to shared memory for the warp that unpacks it.
#pragma once
#include "common/memory.cuh"
#include "cuda/shared/lanes.cuh"
#include "cuda/tiled_bitmap/unit.cuh"

namespace flashsparse::tiled_bitmap {

// A lane's part of the head of a unit. All zero if the unit has no lines.
struct UnitHead {
  uint32_t masks[kMaskWords] = {};
  uint32_t starts = 0;

  // The start of a run. Where tensors are invalid, it is clamped so that no item of the run is past
  // the end of a column.
  __device__ __forceinline__ uint32_t start_of(int run) const {
    const uint32_t start = starts >> 16 * run & 0xffff;
    const uint32_t last = kLaneWeights - run_length(masks, run);
    return min(start / kLineWords, last) * kLineWords | start % kLineWords;
  }
};

// Copies the items of unit `unit` to shared memory at `stage`, and returns the lane's head; all
// items have arrived then. `offsets` has units + 1 entries; nothing else is assumed of it, or of
// `packed`, which is 16-byte aligned and has num_lines lines.
template <int in_word>
__device__ __forceinline__ UnitHead copy_unit(const uint32_t* packed, uint32_t num_lines,
                                              const int32_t* offsets, uint32_t unit,
                                              uint32_t stage) {
  const int lane = threadIdx.x % kLanes;
  const uint32_t begin = min(static_cast<uint32_t>(offsets[unit]), num_lines);
  const uint32_t end = min(static_cast<uint32_t>(offsets[unit + 1]), num_lines);
  UnitHead head;
  if (begin + kHeadLines <= end) {
    constexpr uint32_t kMost = kLaneWeights / in_word;
    const uint32_t lines = min(end - begin - kHeadLines, kMost);
    const uint32_t* const from = packed + static_cast<int64_t>(begin) * kLineWords;
    const uint4* const values = reinterpret_cast<const uint4*>(from + kHeadLines * kLineWords);
    for (uint32_t i = lane; i < lines * (kLineBytes / sizeof(uint4)); i += kLanes) {
      copy_async<16>(stage + i * sizeof(uint4), values + i, true);
    }
    const uint4 mask = load_streaming(reinterpret_cast<const uint4*>(from) + lane);
    head.masks[0] = mask.x, head.masks[1] = mask.y;
    head.masks[2] = mask.z, head.masks[3] = mask.w;
    head.starts = load_streaming(from + kMaskLines * kLineWords + lane);
  }
  copy_async_commit();
  copy_async_wait<0>();
  __syncwarp();
  return head;
}

}  // namespace flashsparse::tiled_bitmap
