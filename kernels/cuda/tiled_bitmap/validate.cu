// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_bitmap/tiled_bitmap.h"
#include "cuda/tiled_bitmap/units_grid.h"
#include "cuda/tiled_bitmap/validate.cuh"

namespace flashsparse::cuda {

cudaError_t tiled_bitmap_validate(const uint32_t* packed, int64_t num_lines, const int32_t* offsets,
                                  int64_t rows, int64_t cols, int item_bytes, int32_t* verdicts,
                                  cudaStream_t stream) {
  using namespace tiled_bitmap;
  if (!can_number_units(rows, cols) || num_lines < 0 || num_lines > INT32_MAX ||
      reinterpret_cast<uintptr_t>(packed) % sizeof(uint4) != 0) {
    return cudaErrorInvalidValue;
  }
  validate_kernel<<<blocks_of(rows, cols, kValidateWarps), kValidateThreads, 0, stream>>>(
      packed, static_cast<int32_t>(num_lines), offsets, rows, cols, items_of_word(item_bytes),
      verdicts);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
