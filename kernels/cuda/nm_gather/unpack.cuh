// SPDX-License-Identifier: Apache-2.0
// nm_gather -> dense, one block a panel of a unit: values are scattered into zeros in shared
// memory, and rows are written from there.
#pragma once
#include "common/memory.cuh"
#include "cuda/nm_gather/linear_shape.h"

namespace flashsparse::nm_gather {

inline constexpr int kUnpackThreads = 128;

// Writes every element of weight [rows, cols]. Launch with gridDim.x = panels of a unit, gridDim.y
// = units or fewer (a block then takes several), kUnpackThreads threads and
// unit_rows * panel_columns * 2 bytes of dynamic shared memory, rounded up to 16.
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_kernel(const Weight weight, int unit_rows, int units, int64_t rows, int64_t cols,
                  uint16_t* __restrict__ dense) {
  FS_DYNAMIC_SHARED(dynamic);
  const uint32_t shared = shared_address(dynamic);
  constexpr int kChunk = sizeof(uint4) / sizeof(uint16_t);
  const int columns = weight.panel_columns, panel = blockIdx.x;
  const int first_column = panel * columns, first_step = panel * weight.panel_steps;
  const int tile_chunks = (unit_rows * columns + kChunk - 1) / kChunk;
  const int vectors = unit_rows / 8 * 32;  // of 16 bytes, a pair
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
      const uint4 loaded = load_streaming(weight.values + (place * vectors + vector));
      const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
      const int64_t entries = (int64_t{unit / weight.group_units} * weight.pairs + pair) * kPair;
      FS_UNROLL
      for (int word = 0; word < 4; ++word) {
        const int high = word / 2, low = word % 2;
        const int step = unit_rows == 8 ? high : vector / 32 / (unit_rows / 16);
        const int half = unit_rows == 8 ? low : high;
        if ((pair * 2 + step) / weight.panel_steps != panel) continue;
        const int row =
            unit_rows == 8 ? lane / 4 : vector / 32 % (unit_rows / 16) * 16 + low * 8 + lane / 4;
        const int entry = step * kStep + half * 8 + lane % 4 * 2;
        FS_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int x = block_begin(first_column) + load_readonly(index + entries + entry + i);
          const int column = column_of_x_row(x) - first_column;
          // Two entries never share a column: `check` has proven it.
          if (column < 0 || column >= columns) continue;
          store_shared(shared + (row * columns + column) * uint32_t{sizeof(uint16_t)},
                       static_cast<uint16_t>(words[word] >> 16 * i));
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

}  // namespace flashsparse::nm_gather
