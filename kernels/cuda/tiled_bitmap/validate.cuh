// SPDX-License-Identifier: Apache-2.0
// Validates tiled_bitmap tensors of any origin on the GPU, one warp per unit. Any bits are valid
// values, so only the heads of units are read.
#pragma once
#include "cuda/tiled_bitmap/unit.cuh"
#include "formats/tiled_bitmap_errors.h"

namespace flashsparse::tiled_bitmap {

inline constexpr int kValidateWarps = 8;  // units of a block
inline constexpr int kValidateThreads = kValidateWarps * kLanes;

__device__ __forceinline__ bool any_lane(bool condition) {
  return __ballot_sync(kAllLanes, condition) != 0;
}

// Whether the lane's masks mark a weight outside of a unit's rows_here x cols_here weights.
__device__ __forceinline__ bool keeps_outside(const uint32_t (&masks)[kMaskWords], int lane,
                                              int rows_here, int cols_here) {
  uint32_t outside = 0;
  FS_UNROLL
  for (int w = 0; w < kMaskWords; ++w) {
    FS_UNROLL
    for (int e = 0; e < 32; e += 8) {  // consecutive bits of a byte are 8 columns apart
      const int cols = max(cols_here - bit_col(lane, w, e) + 7, 0) / 8;
      const int there = bit_row(lane, e) < rows_here ? min(cols, 8) : 0;
      outside |= (masks[w] >> e & 0xff) >> there;
    }
  }
  return outside != 0;
}

// Writes verdicts[u] = nonzeros of unit u, or the rule that it breaks. `in_word`: items per word.
// Launch with ceil(units / kValidateWarps) blocks of kValidateThreads; `packed` is 16-byte aligned
// and has num_lines lines, `offsets` has units + 1 entries. Whatever the tensors hold, no access is
// out of bounds.
__global__ void __launch_bounds__(kValidateThreads)
    validate_kernel(const uint32_t* __restrict__ packed, int32_t num_lines,
                    const int32_t* __restrict__ offsets, int64_t rows, int64_t cols, int in_word,
                    int32_t* __restrict__ verdicts) {
  const int lane = threadIdx.x % kLanes;
  const uint32_t unit = blockIdx.x * kValidateWarps + threadIdx.x / kLanes;
  const int64_t count = units(rows, cols);
  if (unit >= count) return;

  const int64_t begin = offsets[unit], end = offsets[unit + 1], lines = end - begin;
  const bool first = unit == 0, last = unit == count - 1;
  if (begin < 0 || lines < kHeadLines || lines > kHeadLines + kLaneWeights / in_word ||
      end > num_lines || (first && begin != 0) || (last && end != num_lines)) {
    if (lane == 0) verdicts[unit] = kBadOffsets;
    return;
  }
  const uint32_t* const head = packed + begin * kLineWords;
  const uint4 mask = load_streaming(reinterpret_cast<const uint4*>(head) + lane);
  const uint32_t masks[kMaskWords] = {mask.x, mask.y, mask.z, mask.w};
  const uint32_t starts = load_streaming(head + kMaskLines * kLineWords + lane);

  const Corner corner = corner_of(unit, cols);
  const int rows_here = static_cast<int>(min(rows - corner.row, int64_t{kUnitRows}));
  const int cols_here = static_cast<int>(min(cols - corner.col, int64_t{kUnitCols}));
  const bool outside = keeps_outside(masks, lane, rows_here, cols_here);
  const uint32_t items =
      in_word * static_cast<uint32_t>(lines - kHeadLines);  // that fit in a column
  bool shared = false, leaves = false;
  uint32_t kept = 0;
  FS_UNROLL
  for (int run = 0; run < kRuns; ++run) {
    const uint32_t start = starts >> 16 * run & 0xffff, length = run_length(masks, run);
    const uint32_t columns =
        reduce_lanes(1u << start % kLineWords, [](uint32_t a, uint32_t b) { return a | b; });
    shared |= columns != kAllLanes;
    leaves |= start / kLineWords + length > items;
    kept += length;
  }
  kept = reduce_lanes(kept, [](uint32_t a, uint32_t b) { return a + b; });
  int32_t verdict = static_cast<int32_t>(kept);
  if (any_lane(leaves)) verdict = kLeavesColumn;
  if (shared) verdict = kSharedColumn;
  if (any_lane(outside)) verdict = kKeepsOutside;
  if (lane == 0) verdicts[unit] = verdict;
}

}  // namespace flashsparse::tiled_bitmap
