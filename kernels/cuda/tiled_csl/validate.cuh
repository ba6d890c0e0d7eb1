// SPDX-License-Identifier: Apache-2.0
// Validates Tiled-CSL tensors of any origin on the GPU, one block per tile, by the rules of
// cpu/tiled_csl/tiled_csl.h.
#pragma once
#include "common/memory.cuh"
#include "cuda/tiled_csl/verdict.h"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

inline constexpr int kValidateThreads = 256;

// Writes verdicts[t] = distinct locations of tile t with a nonzero value, or the rule that it
// breaks. Launch with gridDim.x = tile_rows(rows) * tile_cols(cols), blockDim.x = kValidateThreads.
// `offsets` has gridDim.x + 1 entries; whatever the tensors hold, no access is out of bounds.
__global__ void __launch_bounds__(kValidateThreads)
    validate_kernel(const uint32_t* __restrict__ words, int32_t num_words,
                    const int32_t* __restrict__ offsets, int64_t rows, int64_t cols,
                    int32_t* __restrict__ verdicts) {
  FS_SHARED(uint16_t, value_at, kTileElements);  // valid where `taken` has the location's bit
  FS_SHARED(uint32_t, taken, kTileElements / 32);
  FS_SHARED(uint32_t, nonzeros, 1);
  FS_SHARED(uint32_t, broken, 2);
  const uint32_t values = shared_address(value_at);

  const int32_t begin = offsets[blockIdx.x], end = offsets[blockIdx.x + 1];
  const bool first = blockIdx.x == 0, last = blockIdx.x == gridDim.x - 1;
  if (begin < 0 || end < begin || end > num_words || begin % kWordAlignment != 0 ||
      end % kWordAlignment != 0 || (first && begin != 0) || (last && end != num_words)) {
    if (threadIdx.x == 0) verdicts[blockIdx.x] = kBadOffsets;
    return;
  }
  for (int i = threadIdx.x; i < kTileElements / 32; i += kValidateThreads) taken[i] = 0;
  if (threadIdx.x < 2) broken[threadIdx.x] = 0;
  if (threadIdx.x == 0) nonzeros[0] = 0;
  __syncthreads();

  const uint32_t across = static_cast<uint32_t>(tile_cols(cols));
  const int64_t rows_here = rows - static_cast<int64_t>(blockIdx.x / across) * kTileRows;
  const int64_t cols_here = cols - static_cast<int64_t>(blockIdx.x % across) * kTileCols;
  uint32_t kept = 0;
  for (int32_t i = begin + threadIdx.x; i < end; i += kValidateThreads) {
    const uint32_t place = location_of(words[i]);
    const uint16_t value = bits_of(words[i]);
    if (place >= kTileElements || row_of(place) >= rows_here || col_of(place) >= cols_here) {
      atomicOr(broken, 1u);
      continue;
    }
    const uint32_t bit = 1u << place % 32;
    const bool seen = atomicOr(taken + place / 32, bit) & bit;
    kept += !seen && !is_zero(value);
    // If a location has two values, either may stay.
    store_shared_same(values + place * sizeof(uint16_t), value);
  }
  atomicAdd(nonzeros, kept);
  __syncthreads();

  for (int32_t i = begin + threadIdx.x; i < end; i += kValidateThreads) {
    const uint32_t place = location_of(words[i]);
    if (place < kTileElements && (taken[place / 32] >> place % 32 & 1) &&
        load_shared<uint16_t>(values + place * sizeof(uint16_t)) != bits_of(words[i])) {
      atomicOr(broken + 1, 1u);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    verdicts[blockIdx.x] = broken[0]   ? kPointsOutside
                           : broken[1] ? kTwoValues
                                       : static_cast<int32_t>(nonzeros[0]);
  }
}

}  // namespace flashsparse::tiled_csl
