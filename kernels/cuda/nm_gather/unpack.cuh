// SPDX-License-Identifier: Apache-2.0
// Unpacks nm_gather to a dense weight, one block per panel of a unit: values are scattered into
// zeros in shared memory, from where rows are written. Quantized values are multiplied by their
// scales with one rounding.
#pragma once
#include "common/memory.cuh"
#include "cuda/nm_gather/fragments.cuh"
#include "cuda/nm_gather/linear_shape.h"

namespace flashsparse::nm_gather {

inline constexpr int kUnpackThreads = 128;

// Writes every element of weight [rows, cols]. Launch with gridDim.x = panels of a unit, gridDim.y
// = units or fewer (a block then takes several), kUnpackThreads threads and
// unit_rows * panel_columns * 2 bytes of dynamic shared memory, rounded up to 16.
template <class Type, ValueType kValues>
__global__ void __launch_bounds__(kUnpackThreads, 8)  // without the 8 it spills a register
    unpack_kernel(const Weight weight, int unit_rows, int units, int64_t rows, int64_t cols,
                  uint16_t* __restrict__ dense) {
  FS_DYNAMIC_SHARED(dynamic);
  const uint32_t shared = shared_address(dynamic);
  constexpr int kChunk = sizeof(uint4) / sizeof(uint16_t);
  const int columns = weight.panel_columns, panel = blockIdx.x;
  const int first_column = panel * columns, first_step = panel * weight.panel_steps;
  const int tile_chunks = (unit_rows * columns + kChunk - 1) / kChunk;
  const int vectors = unit_rows * bits_of(kValues) / 128 * 32;  // of 16 bytes, for a pair
  const int pair_vectors = vectors + group_scale_bytes(kValues) / 16;
  constexpr int kTogether = fragments_in_vector(kValues);
  const auto* const index = reinterpret_cast<const uint8_t*>(weight.index);

  for (int unit = blockIdx.y; unit < units; unit += gridDim.y) {
    for (int i = threadIdx.x; i < tile_chunks; i += kUnpackThreads) {
      store_shared(shared + i * uint32_t{sizeof(uint4)}, make_uint4(0, 0, 0, 0));
    }
    __syncthreads();

    const int first_pair = first_step / 2, last_pair = (first_step + weight.panel_steps + 1) / 2;
    for (int i = threadIdx.x; i < (last_pair - first_pair) * vectors; i += kUnpackThreads) {
      const int pair = first_pair + i / vectors, vector = i % vectors, lane = vector % 32;
      const int64_t place = int64_t{unit} * weight.pairs + pair;
      const uint4 loaded = load_streaming(weight.values + (place * pair_vectors + vector));
      const int64_t entries = (int64_t{unit / weight.group_units} * weight.pairs + pair) * kPair;
      FS_NO_UNROLL
      for (int part = 0; part < kTogether; ++part) {
        const int fragment = vector / 32 * kTogether + part;
        uint32_t words[4];
        widen_values<Type, kValues>(loaded, part, words);
        if constexpr (scaled_by_group(kValues)) {
          const auto* const scales = reinterpret_cast<const uint32_t*>(
              weight.values + (place * pair_vectors + vectors + lane / 4));
          scale_rows<Type>(load_readonly(scales + fragment), words);
        }
        float scales[2] = {};  // of the rows of even words, and of odd ones
        if constexpr (scaled_by_row(kValues)) {
          const int row = unit * unit_rows + fragment % (unit_rows / 16) * 16 + lane / 4;
          const int last = static_cast<int>(rows) - 1;
          scales[0] = load_readonly(weight.row_scales + min(row, last));
          scales[1] = load_readonly(weight.row_scales + min(row + 8, last));
        }
        FS_UNROLL
        for (int word = 0; word < 4; ++word) {
          const int high = word / 2, low = word % 2;
          const int step = unit_rows == 8 ? high : fragment / (unit_rows / 16);
          const int half = unit_rows == 8 ? low : high;
          if ((pair * 2 + step) / weight.panel_steps != panel) continue;
          const int row =
              unit_rows == 8 ? lane / 4 : fragment % (unit_rows / 16) * 16 + low * 8 + lane / 4;
          const int entry = step * kStep + half * 8 + lane % 4 * 2;
          FS_UNROLL
          for (int i = 0; i < 2; ++i) {
            const int x = block_begin(first_column) + load_readonly(index + entries + entry + i);
            const int column = column_of_x_row(x) - first_column;
            // `check` has proven that no two entries share a column.
            if (column < 0 || column >= columns) continue;
            auto value = static_cast<uint16_t>(words[word] >> 16 * i);
            if constexpr (scaled_by_row(kValues)) {
              value = from_float<Type>(to_float<Type>(value) * scales[low]);
            }
            store_shared(shared + (row * columns + column) * uint32_t{sizeof(uint16_t)}, value);
          }
        }
      }
    }
    __syncthreads();

    const int64_t first_row = int64_t{unit} * unit_rows;
    uint16_t* const corner = dense + first_row * cols + first_column;
    if (columns % kChunk == 0 && cols % kChunk == 0 &&
        reinterpret_cast<uintptr_t>(dense) % sizeof(uint4) == 0) {
      const int row_chunks = columns / kChunk;
      for (int i = threadIdx.x; i < unit_rows * row_chunks; i += kUnpackThreads) {
        const int row = i / row_chunks, column = i % row_chunks * kChunk;
        if (first_row + row < rows && first_column + column < cols) {
          store_global(reinterpret_cast<uint4*>(corner + row * cols + column),
                       load_shared<uint4>(shared + i * uint32_t{sizeof(uint4)}));
        }
      }
    } else {
      for (int i = threadIdx.x; i < unit_rows * columns; i += kUnpackThreads) {
        const int row = i / columns, column = i % columns;
        if (first_row + row < rows && first_column + column < cols) {
          corner[row * cols + column] =
              load_shared<uint16_t>(shared + i * uint32_t{sizeof(uint16_t)});
        }
      }
    }
    __syncthreads();
  }
}

inline auto unpack_kernel_of(ValueType values, bool bfloat16) {
  return with_type(values, [&](auto type) {
    constexpr ValueType kValues = decltype(type)::value;
    // Native values are moved bitwise, so the dtype is irrelevant.
    if constexpr (kValues != ValueType::kNative) {
      if (bfloat16) return unpack_kernel<BFloat16, kValues>;
    }
    return unpack_kernel<Float16, kValues>;
  });
}

}  // namespace flashsparse::nm_gather
