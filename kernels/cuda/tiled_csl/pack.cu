// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_csl/pack.cuh"
#include "cuda/tiled_csl/tiled_csl.h"

namespace flashsparse::cuda {
namespace {

bool can_launch(int64_t rows, int64_t cols) {
  return rows >= 1 && cols >= 1 &&
         tiled_csl::tile_rows(rows) <= INT32_MAX / tiled_csl::tile_cols(cols);
}

uint32_t tiles_of(int64_t rows, int64_t cols) {
  return static_cast<uint32_t>(tiled_csl::tile_rows(rows) * tiled_csl::tile_cols(cols));
}

}  // namespace

cudaError_t tiled_csl_count(const uint16_t* weight, int64_t rows, int64_t cols, int32_t* lengths,
                            cudaStream_t stream) {
  if (!can_launch(rows, cols)) return cudaErrorInvalidValue;
  tiled_csl::count_kernel<<<tiles_of(rows, cols), tiled_csl::kPackThreads, 0, stream>>>(
      weight, rows, cols, lengths);
  return cudaGetLastError();
}

cudaError_t tiled_csl_pack(const uint16_t* weight, int64_t rows, int64_t cols,
                           const int32_t* offsets, uint32_t* words, cudaStream_t stream) {
  if (!can_launch(rows, cols) || reinterpret_cast<uintptr_t>(words) % sizeof(uint4) != 0) {
    return cudaErrorInvalidValue;
  }
  tiled_csl::pack_kernel<<<tiles_of(rows, cols), tiled_csl::kPackThreads, 0, stream>>>(
      weight, rows, cols, offsets, words);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
