// SPDX-License-Identifier: Apache-2.0
// Turns units of 2:4 into units of sparse_24 with 16-bit values, by which its kernels multiply
// prompts: a block for each unit, a warp for each panel. A lane's registers of a step are its
// values of that step in both forms, and the metadata is the same, but for exceptions.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/exact_units/decode.cuh"
#include "cuda/exact_units/linear_arguments.h"
#include "cuda/exact_units/widen_24.h"
#include "cuda/mma_units/spread.cuh"
#include "formats/exact_units.h"

namespace flashsparse::exact_units {

inline constexpr int kWidenThreads = 32 * panels(Kind::k24);

// Puts an exception among the two columns that its four keep, instead of a zero: at most one other
// of them is not zero.
__device__ __forceinline__ void keep(uint32_t* unit, int row, int column, uint16_t weight) {
  const int step = column / 32, half = column / 16 % 2, four = column / 4 % 4, group = row % 8;
  uint32_t* const values = unit + (step * 32 + group * 4 + four) * 4 + half * 2 + row / 8;
  uint32_t* const places =
      unit + kWidened.metadata() / 4 + (group * 4 + step % 2 * 2 + half) * 4 + step / 2;
  const int shift = row / 8 * 16 + four * 4;
  const uint2 stored = mma_units::spread(*values, *places >> shift);
  uint64_t dense = static_cast<uint64_t>(stored.y) << 32 | stored.x;
  const int at = column % 4 * 16;
  dense = (dense & ~(uint64_t{0xffff} << at)) | static_cast<uint64_t>(weight) << at;
  uint32_t mask = 0;  // of the columns that are not zero
  FS_UNROLL
  for (int i = 0; i < 4; ++i) mask |= static_cast<uint32_t>((dense >> i * 16 & 0x7fff) != 0) << i;
  if ((mask & (mask - 1)) == 0) mask |= mask & 1 ? 2 : 1;  // one column: the smallest other
  const uint32_t low = mask & 1 ? 0 : mask & 2 ? 1 : 2, others = mask & (mask - 1);
  const uint32_t high = others & 2 ? 1 : others & 4 ? 2 : 3;
  *values = static_cast<uint32_t>(dense >> low * 16 & 0xffff) |
            static_cast<uint32_t>(dense >> high * 16 & 0xffff) << 16;
  *places = (*places & ~(0xfu << shift)) | (low | high << 2) << shift;
}

// Launch with a block for each unit, and kWidenThreads threads.
__global__ void __launch_bounds__(kWidenThreads)
    widen_24_kernel(const uint32_t* units, const float* scales, const Exceptions exceptions,
                    int rows, int64_t cols, uint32_t* widened) {
  const uint32_t across = static_cast<uint32_t>(unit_cols(cols)), unit_row = blockIdx.x / across;
  const uint32_t unit_col = blockIdx.x - unit_row * across;
  const int panel = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto* const from =
      reinterpret_cast<const uint4*>(units + uint64_t{blockIdx.x} * unit_words(Kind::k24)) + lane;
  uint32_t* const unit = widened + uint64_t{blockIdx.x} * kWidened.words();
  auto* const to = reinterpret_cast<uint4*>(unit) + lane;
  uint32_t scale[2];
  load_scales(scales, unit_row * kUnitRows + lane / 4, rows, scale);
  uint4 words[kPanelVectors];
  load_panel(from, panel, words);
  FS_UNROLL
  for (int step = 0; step < 4; ++step) {
    uint32_t a[4];
    decode(words, step, a);
    FS_UNROLL
    for (int i = 0; i < 4; ++i) a[i] = unscaled_two(a[i], scale[i % 2]);
    store_global(to + (panel * 4 + step) * 32, make_uint4(a[0], a[1], a[2], a[3]));
  }
  if (panel == 0) {
    store_global(to + kWidened.metadata() / kLaneBytes,
                 load_streaming(from + metadata(Kind::k24) / kLaneBytes));
  }
  __syncthreads();
  // One thread for all: ordinary layers have one exception a unit, or less.
  if (threadIdx.x != 0) return;
  const uint32_t* const slots = exceptions.slots + uint64_t{blockIdx.x} * exceptions.unit_slots;
  FS_NO_UNROLL
  for (int i = 0; i < exceptions.unit_slots; ++i) {
    const uint32_t slot = load_readonly(slots + i);
    const int row = unit_row * kUnitRows + slot_row(slot);
    if (slot == 0 || row >= rows) break;
    keep(unit, slot_row(slot), slot_column(slot), unscaled(slot, scales[row]));
  }
  const uint32_t end = load_readonly(exceptions.offsets + unit_row + 1);
  FS_NO_UNROLL
  for (uint32_t i = load_readonly(exceptions.offsets + unit_row); i < end; ++i) {
    const uint32_t column = load_readonly(exceptions.list + 2 * uint64_t{i});
    const uint32_t value = load_readonly(exceptions.list + 2 * uint64_t{i} + 1);
    if (column / kUnitCols != unit_col) continue;
    keep(unit, value % kUnitRows, column % kUnitCols, static_cast<uint16_t>(value >> 16));
  }
}

}  // namespace flashsparse::exact_units
