// SPDX-License-Identifier: Apache-2.0
// Unpacks tiled_bitmap to a dense weight on the GPU, one warp per unit.
#pragma once
#include "cuda/tiled_bitmap/unit.cuh"
#include "cuda/tiled_bitmap/unit_copy.cuh"

namespace flashsparse::tiled_bitmap {

inline constexpr int kUnpackWarps = 4;  // units of a block
inline constexpr int kUnpackThreads = kUnpackWarps * kLanes;

// Loads a lane's weights from the columns of items in shared memory, zeros included. `scales` are
// those of the lane's two rows.
template <class Items>
__device__ __forceinline__ void load_items(const UnitHead& head, uint32_t values,
                                           const float (&scales)[kHalves], Pairs& pairs) {
  FS_UNROLL
  for (int run = 0; run < kRuns; ++run) {
    ItemPlace<kItemsOfWord<Items>> item(values, head.start_of(run));
    FS_UNROLL
    for (int w = run * kRunMasks; w < (run + 1) * kRunMasks; ++w) {
      FS_UNROLL
      for (int j = 0; j < kChunk; ++j) {
        FS_UNROLL
        for (int half = 0; half < kHalves; ++half) {
          uint32_t pair[2];
          FS_UNROLL
          for (int e = 0; e < 2; ++e) {
            pair[e] = 0;
            if (head.masks[w] >> (j + 16 * half + 8 * e) & 1) {
              const auto found = load_shared<typename Items::Item>(item.address);
              pair[e] = Items::weight_of(found, scales[half]);
              item.next();
            }
          }
          pairs[w][j][half] = pair[0] | pair[1] << 16;
        }
      }
    }
  }
}

// Writes every element of weight [rows, cols], zeros included; native values may be fp16 or bf16.
// `scales` [rows] apply to int8 values; null means 1. Launch with ceil(units / kUnpackWarps) blocks
// of kUnpackThreads; `packed` is 16-byte aligned and has num_lines lines.
//
// `offsets` has units + 1 entries. Nothing else is assumed: whatever the tensors hold, no access is
// out of bounds. `validate` checks once, at load, that they are a packed weight.
template <class Items>
__global__ void __launch_bounds__(kUnpackThreads, 5)
    unpack_kernel(const uint32_t* __restrict__ packed, uint32_t num_lines,
                  const int32_t* __restrict__ offsets, const float* __restrict__ scales,
                  int64_t rows, int64_t cols, uint16_t* __restrict__ weight) {
  FS_SHARED(unsigned char, stages, kUnpackWarps* kStageBytes);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const uint32_t unit = blockIdx.x * kUnpackWarps + warp;
  if (unit >= units(rows, cols)) return;
  const uint32_t stage = shared_address(stages + warp * kStageBytes);

  const UnitHead head = copy_unit<kItemsOfWord<Items>>(packed, num_lines, offsets, unit, stage);
  const Corner corner = corner_of(unit, cols);
  float own_scales[kHalves] = {1, 1};
  if (Items::kHasScales && scales) {
    FS_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      const int64_t row = corner.row + lane / 4 + 8 * half;
      if (row < rows) own_scales[half] = scales[row];
    }
  }
  Pairs pairs;
  load_items<Items>(head, stage, own_scales, pairs);
  __syncwarp();  // rows overwrite items
  FS_UNROLL
  for (int w = 0; w < kMaskWords; ++w) {
    FS_UNROLL
    for (int j = 0; j < kChunk; ++j) {
      FS_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        store_shared(pair_address(stage, lane, w, j, half), pairs[w][j][half]);
      }
    }
  }
  __syncwarp();

  const int64_t rows_here = rows - corner.row, cols_here = cols - corner.col;  // may exceed a unit
  uint16_t* row = weight + corner.row * cols + corner.col;
  if (whole_chunks(weight, cols)) {
    const int col = lane * kChunk;
    FS_UNROLL
    for (int r = 0; r < kUnitRows; ++r, row += cols) {
      if (r < rows_here && col < cols_here) {
        store_global_whole(reinterpret_cast<uint4*>(row + col),
                           load_shared<uint4>(stage + r * kRowBytes + lane * sizeof(uint4)));
      }
    }
  } else {
    for (int r = 0; r < kUnitRows; ++r, row += cols) {
      for (int col = lane; col < kUnitCols; col += kLanes) {
        if (r < rows_here && col < cols_here) {
          row[col] = load_shared<uint16_t>(stage + r * kRowBytes + col * sizeof(uint16_t));
        }
      }
    }
  }
}

}  // namespace flashsparse::tiled_bitmap
