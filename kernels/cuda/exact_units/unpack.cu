// SPDX-License-Identifier: Apache-2.0
#include "cuda/exact_units/exact_units.h"
#include "cuda/exact_units/unpack.cuh"
#include "cuda/exact_units/widen_24.cuh"

namespace flashsparse::cuda {
namespace {

// Blocks of a launch over all units, or 0 where there can be none.
uint32_t blocks(const uint32_t* units, int64_t rows, int64_t cols) {
  const int64_t count = exact_units::unit_rows(rows) * exact_units::unit_cols(cols);
  const bool aligned = reinterpret_cast<uintptr_t>(units) % sizeof(uint4) == 0;
  const bool can = rows >= 1 && cols >= 1 && count <= INT32_MAX && aligned;
  return can ? static_cast<uint32_t>(count) : 0;
}

}  // namespace

cudaError_t exact_units_unpack(const uint32_t* units, exact_units::Kind kind, const float* scales,
                               const exact_units::Exceptions& exceptions, int64_t rows,
                               int64_t cols, uint16_t* weight, cudaStream_t stream) {
  using exact_units::Kind;
  const uint32_t count = blocks(units, rows, cols);
  if (count == 0) return cudaErrorInvalidValue;
  const auto kernel = kind == Kind::kDense ? exact_units::unpack_kernel<Kind::kDense>
                                           : exact_units::unpack_kernel<Kind::k24>;
  kernel<<<count, exact_units::kUnpackThreads, 0, stream>>>(units, scales, exceptions,
                                                            static_cast<int>(rows), cols, weight);
  return cudaGetLastError();
}

cudaError_t exact_units_widen_24(const uint32_t* units, const float* scales,
                                 const exact_units::Exceptions& exceptions, int64_t rows,
                                 int64_t cols, uint32_t* widened, cudaStream_t stream) {
  const uint32_t count = blocks(units, rows, cols);
  if (count == 0) return cudaErrorInvalidValue;
  exact_units::widen_24_kernel<<<count, exact_units::kWidenThreads, 0, stream>>>(
      units, scales, exceptions, static_cast<int>(rows), cols, widened);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
