// SPDX-License-Identifier: Apache-2.0
#include "cuda/hybrid_units/hybrid_units.h"
#include "cuda/hybrid_units/unpack.cuh"

namespace flashsparse::cuda {

cudaError_t hybrid_units_unpack(const uint32_t* units, const int32_t* offsets, const float* scales,
                                hybrid_units::UnitLayout unit, int64_t rows, int64_t cols,
                                bool bfloat16, uint16_t* weight, cudaStream_t stream) {
  const int64_t count = hybrid_units::unit_rows(rows) * hybrid_units::unit_cols(cols);
  if (rows < 1 || cols < 1 || count > INT32_MAX ||
      reinterpret_cast<uintptr_t>(units) % sizeof(uint4) != 0) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = hybrid_units::compiled_unpack(unit, bfloat16);
  kernel<<<static_cast<uint32_t>(count), hybrid_units::kUnpackThreads, 0, stream>>>(
      units, offsets, scales, rows, cols, weight);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
