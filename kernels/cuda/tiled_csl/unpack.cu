// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_csl/tiled_csl.h"
#include "cuda/tiled_csl/unpack.cuh"

namespace flashsparse::cuda {

cudaError_t tiled_csl_unpack(const uint32_t* words, int64_t num_words, const int32_t* offsets,
                             int64_t rows, int64_t cols, uint16_t* weight, cudaStream_t stream) {
  const int64_t tiles = tiled_csl::tile_rows(rows) * tiled_csl::tile_cols(cols);
  if (rows < 1 || cols < 1 || tiles > INT32_MAX || num_words < 0 || num_words > INT32_MAX ||
      reinterpret_cast<uintptr_t>(words) % sizeof(uint4) != 0) {
    return cudaErrorInvalidValue;
  }
  tiled_csl::unpack_kernel<<<static_cast<uint32_t>(tiles), tiled_csl::kUnpackThreads, 0, stream>>>(
      words, static_cast<uint32_t>(num_words), offsets, rows, cols, weight);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
