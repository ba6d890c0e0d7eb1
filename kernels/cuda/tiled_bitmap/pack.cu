// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_bitmap/pack.cuh"
#include "cuda/tiled_bitmap/tiled_bitmap.h"
#include "cuda/tiled_bitmap/units_grid.h"

namespace flashsparse::cuda {

cudaError_t tiled_bitmap_count(const uint16_t* weight, int64_t rows, int64_t cols, int item_bytes,
                               int32_t* lengths, cudaStream_t stream) {
  using namespace tiled_bitmap;
  if (!can_number_units(rows, cols)) return cudaErrorInvalidValue;
  const auto kernel = item_bytes == 2 ? count_kernel<ValueItems> : count_kernel<CodeItems<Float16>>;
  kernel<<<blocks_of(rows, cols, kPackWarps), kPackThreads, 0, stream>>>(weight, rows, cols,
                                                                         lengths);
  return cudaGetLastError();
}

cudaError_t tiled_bitmap_pack(const uint16_t* weight, int64_t rows, int64_t cols, int item_bytes,
                              const int32_t* offsets, uint32_t* packed, cudaStream_t stream) {
  using namespace tiled_bitmap;
  if (!can_number_units(rows, cols) || reinterpret_cast<uintptr_t>(packed) % sizeof(uint4) != 0) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = item_bytes == 2 ? pack_kernel<ValueItems> : pack_kernel<CodeItems<Float16>>;
  kernel<<<blocks_of(rows, cols, kPackWarps), kPackThreads, 0, stream>>>(weight, rows, cols,
                                                                         offsets, packed);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
