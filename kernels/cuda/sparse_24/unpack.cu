// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/sparse_24.h"
#include "cuda/sparse_24/unpack.cuh"

namespace flashsparse::cuda {

cudaError_t sparse_24_unpack(const uint32_t* units, const float* scales, sparse_24::UnitLayout unit,
                             int64_t rows, int64_t cols, bool bfloat16, uint16_t* weight,
                             cudaStream_t stream) {
  const int64_t count = sparse_24::unit_rows(rows) * sparse_24::unit_cols(cols);
  if (rows < 1 || cols < 1 || count > INT32_MAX ||
      reinterpret_cast<uintptr_t>(units) % sizeof(uint4) != 0) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = sparse_24::compiled_unpack(unit, bfloat16);
  kernel<<<static_cast<uint32_t>(count), sparse_24::kUnpackThreads, 0, stream>>>(
      units, scales, rows, cols, weight);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
