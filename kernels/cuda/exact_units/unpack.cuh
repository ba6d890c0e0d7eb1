// SPDX-License-Identifier: Apache-2.0
// Unpacks exact_units, bit for bit: a block for each unit, a warp for 64 columns. Weights are put
// together in shared memory, since a lane has two columns of eight, or four of sixteen, and leave
// it in whole rows.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/exact_units/decode.cuh"
#include "cuda/exact_units/linear_arguments.h"
#include "cuda/mma_units/spread.cuh"
#include "formats/exact_units.h"

namespace flashsparse::exact_units {

inline constexpr int kUnpackThreads = 32 * kPanels;
inline constexpr int kUnpackStride = kUnitCols + 8;  // of a row in shared memory: no bank conflicts

// Decodes the columns of a panel to the tile, the first of which in the lane's upper row is at
// `place`; `scales` of both rows are twice a bfloat16.
__device__ __forceinline__ void unpack_dense(const uint4* vectors, int panel, uint32_t place,
                                             const uint32_t (&scales)[2]) {
  uint4 words[kPanelVectors];
  load_panel(vectors, panel, words);
  FS_UNROLL
  for (int step = 0; step < 4; ++step) {
    uint32_t a[4];
    decode(words, step, a);
    FS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t two = unscaled_two(a[i], scales[i % 2]);
      const int column = step * 16 + i / 2 * 8 + threadIdx.x % 4 * 2;
      store_shared(place + (i % 2 * 8 * kUnpackStride + column) * 2, two);
    }
  }
}

// The same of 2:4, zeros included.
__device__ __forceinline__ void unpack_24(const uint4* vectors, int panel, uint32_t place,
                                          const uint32_t (&scales)[2]) {
  const int lane = threadIdx.x % 32;
  uint4 words[kPanelVectors];
  load_panel(vectors, panel / 2, words);
  const auto* const places =
      reinterpret_cast<const uint32_t*>(vectors - lane + metadata(Kind::k24) / kLaneBytes);
  FS_UNROLL
  for (int step = 0; step < 2; ++step) {
    uint32_t a[4];
    decode(words, panel % 2 * 2 + step, a);
    FS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t two = unscaled_two(a[i], scales[i % 2]);
      const uint2 four = mma_units::spread(two, i, places, panel * 2 + step);
      const int column = step * 32 + i / 2 * 16 + lane % 4 * 4;
      store_shared(place + (i % 2 * 8 * kUnpackStride + column) * 2, four);
    }
  }
}

// Launch with a block for each unit, and kUnpackThreads threads. All pointers but the list are to
// what belongs to the first row to unpack, a multiple of 16.
template <Kind kind>
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_kernel(const uint32_t* units, const float* scales, const Exceptions exceptions, int rows,
                  int64_t cols, uint16_t* weight) {
  FS_SHARED(uint16_t, tile, kUnitRows* kUnpackStride);
  const uint32_t across = static_cast<uint32_t>(unit_cols(cols)), unit_row = blockIdx.x / across;
  const uint32_t unit_col = blockIdx.x - unit_row * across;
  const int panel = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto* const vectors = reinterpret_cast<const uint4*>(units) +
                              uint64_t{blockIdx.x} * (unit_bytes(kind) / kLaneBytes) + lane;
  uint32_t scale[2];
  load_scales(scales, unit_row * kUnitRows + lane / 4, rows, scale);
  const uint32_t place =
      shared_address(tile) + ((lane / 4) * kUnpackStride + panel * kPanelCols) * 2;
  if constexpr (kind == Kind::kDense) {
    unpack_dense(vectors, panel, place, scale);
  } else {
    unpack_24(vectors, panel, place, scale);
  }
  __syncthreads();
  if (threadIdx.x < static_cast<uint32_t>(exceptions.unit_slots)) {
    const uint32_t slot = load_readonly(exceptions.slots +
                                        uint64_t{blockIdx.x} * exceptions.unit_slots + threadIdx.x);
    const int row = unit_row * kUnitRows + slot_row(slot);
    if (slot != 0 && row < rows) {
      tile[slot_row(slot) * kUnpackStride + slot_column(slot)] = unscaled(slot, scales[row]);
    }
  }
  const uint32_t begin = load_readonly(exceptions.offsets + unit_row);
  const uint32_t end = load_readonly(exceptions.offsets + unit_row + 1);
  FS_NO_UNROLL
  for (uint32_t i = begin + threadIdx.x; i < end; i += kUnpackThreads) {
    const uint32_t column = load_readonly(exceptions.list + 2 * uint64_t{i});
    const uint32_t value = load_readonly(exceptions.list + 2 * uint64_t{i} + 1);
    if (column / kUnitCols != unit_col) continue;
    tile[value % kUnitRows * kUnpackStride + column % kUnitCols] =
        static_cast<uint16_t>(value >> 16);
  }
  __syncthreads();
  FS_UNROLL
  for (int i = 0; i < kUnitRows / kPanels; ++i) {  // a warp writes a whole row of the unit
    const int line = i * kPanels + panel, row = unit_row * kUnitRows + line;
    const int64_t col = int64_t{unit_col} * kUnitCols + lane * 8;
    if (row >= rows || col >= cols) continue;
    const uint4 eight =
        load_shared<uint4>(shared_address(tile) + (line * kUnpackStride + lane * 8) * 2);
    uint16_t* const to = weight + row * cols + col;
    if (cols % 8 == 0) {
      store_global(reinterpret_cast<uint4*>(to), eight);
    } else {
      const uint32_t two[4] = {eight.x, eight.y, eight.z, eight.w};
      FS_UNROLL
      for (int e = 0; e < 8; ++e) {
        if (col + e < cols) store_global(to + e, static_cast<uint16_t>(two[e / 2] >> e % 2 * 16));
      }
    }
  }
}

}  // namespace flashsparse::exact_units
