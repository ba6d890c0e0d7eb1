// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_csl/tiled_csl.h"
#include "cuda/tiled_csl/validate.cuh"

namespace flashsparse::cuda {

cudaError_t tiled_csl_validate(const uint32_t* words, int64_t num_words, const int32_t* offsets,
                               int64_t rows, int64_t cols, int32_t* verdicts, cudaStream_t stream) {
  const int64_t tiles = tiled_csl::tile_rows(rows) * tiled_csl::tile_cols(cols);
  if (rows < 1 || cols < 1 || tiles > INT32_MAX || num_words < 0 || num_words > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  tiled_csl::
      validate_kernel<<<static_cast<uint32_t>(tiles), tiled_csl::kValidateThreads, 0, stream>>>(
          words, static_cast<int32_t>(num_words), offsets, rows, cols, verdicts);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
