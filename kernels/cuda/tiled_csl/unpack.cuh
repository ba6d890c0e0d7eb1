// SPDX-License-Identifier: Apache-2.0
// Unpacks Tiled-CSL to a dense weight on the GPU, one block per tile. Flash-LLM (Xia et al., VLDB
// 2024), section 4.3.1: the location in a word is the element's offset in shared memory, so a tile
// is zeroed there, its words are scattered without address arithmetic, and rows are read back
// through the swizzle.
#pragma once
#include "common/memory.cuh"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

inline constexpr int kUnpackThreads = 256;

// Writes every element of weight [rows, cols], zeros included; values may be fp16 or bf16. Launch
// with gridDim.x = tile_rows(rows) * tile_cols(cols), blockDim.x = kUnpackThreads.
//
// `offsets` has gridDim.x + 1 entries. Nothing else is assumed: whatever the tensors hold, no
// access is out of bounds (offsets are clamped to num_words, locations are masked). `validate`
// checks once, at load, that they are a packed weight.
__global__ void __launch_bounds__(kUnpackThreads)
    unpack_kernel(const uint32_t* __restrict__ words, uint32_t num_words,
                  const int32_t* __restrict__ offsets, int64_t rows, int64_t cols,
                  uint16_t* __restrict__ weight) {
  constexpr int kChunk = sizeof(uint4) / sizeof(uint16_t);
  FS_SHARED(uint4, chunks, kTileElements / kChunk);
  const uint32_t tile = shared_address(chunks);

  for (int i = threadIdx.x; i < kTileElements / kChunk; i += kUnpackThreads) {
    store_shared(tile + i * sizeof(uint4), make_uint4(0, 0, 0, 0));
  }
  __syncthreads();

  // A warp takes 32 consecutive words, not 4 for each lane, since the format orders these by banks.
  constexpr uint32_t kBatch = 4;  // words of a thread in flight
  const uint32_t begin = min(static_cast<uint32_t>(offsets[blockIdx.x]), num_words);
  const uint32_t end = min(static_cast<uint32_t>(offsets[blockIdx.x + 1]), num_words);
  for (uint32_t i = begin + threadIdx.x; i < end; i += kBatch * kUnpackThreads) {
    uint32_t batch[kBatch];
    FS_UNROLL
    for (uint32_t k = 0; k < kBatch; ++k) {
      const uint32_t place = i + k * kUnpackThreads;
      if (place < end) batch[k] = load_streaming(words + place);
    }
    FS_UNROLL
    for (uint32_t k = 0; k < kBatch; ++k) {
      if (i + k * kUnpackThreads < end) {
        // The mask takes one instruction, and keeps words that were never validated inside the
        // tile. Padding repeats a word, so two threads may store the same element.
        const uint32_t element = location_of(batch[k]) & (kTileElements - 1);
        store_shared_same(tile + element * sizeof(uint16_t), bits_of(batch[k]));
      }
    }
  }
  __syncthreads();

  const uint32_t across = static_cast<uint32_t>(tile_cols(cols));
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / across) * kTileRows;
  const int64_t first_col = static_cast<int64_t>(blockIdx.x % across) * kTileCols;
  const int64_t rows_here = rows - first_row,
                cols_here = cols - first_col;  // may exceed a tile
  uint16_t* const corner = weight + first_row * cols + first_col;
  if (cols % kChunk == 0 && reinterpret_cast<uintptr_t>(weight) % sizeof(uint4) == 0) {
    constexpr int kRowChunks = kTileCols / kChunk;
    for (int i = threadIdx.x; i < kTileElements / kChunk; i += kUnpackThreads) {
      const int row = i / kRowChunks, col = i % kRowChunks * kChunk;
      if (row < rows_here && col < cols_here) {
        store_global_whole(reinterpret_cast<uint4*>(corner + row * cols + col),
                           load_shared<uint4>(tile + location(row, col) * sizeof(uint16_t)));
      }
    }
  } else {
    for (int i = threadIdx.x; i < kTileElements; i += kUnpackThreads) {
      const int row = i / kTileCols, col = i % kTileCols;
      if (row < rows_here && col < cols_here) {
        corner[row * cols + col] =
            load_shared<uint16_t>(tile + location(row, col) * sizeof(uint16_t));
      }
    }
  }
}

}  // namespace flashsparse::tiled_csl
