// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_vector/nm_vector.h"
#include "cuda/nm_vector/validate.cuh"

namespace flashsparse::cuda {

cudaError_t nm_vector_validate(const void* values, const uint8_t* index,
                               const nm_vector::Fields& fields, const nm_vector::Pattern& pattern,
                               int64_t rows, int64_t cols, nm_vector::Found* found,
                               cudaStream_t stream) {
  using namespace nm_vector;
  if (reinterpret_cast<uintptr_t>(values) % sizeof(uint4) != 0) return cudaErrorInvalidValue;
  const auto blocks = static_cast<uint32_t>(validate_blocks(fields, pattern, rows, cols));
  validate_kernel<<<blocks, kValidateThreads, 0, stream>>>(static_cast<const uint8_t*>(values),
                                                           index, fields, Extent::of(pattern, cols),
                                                           rows, static_cast<int>(cols), found);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
