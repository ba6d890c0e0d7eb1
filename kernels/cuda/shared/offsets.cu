// SPDX-License-Identifier: Apache-2.0
#include "cuda/shared/offsets.cuh"
#include "cuda/shared/offsets.h"

namespace flashsparse::cuda {

cudaError_t sum_offsets(const int32_t* lengths, int64_t parts, int32_t* offsets, int64_t* total,
                        cudaStream_t stream) {
  if (parts < 1 || parts > INT32_MAX || reinterpret_cast<uintptr_t>(lengths) % 16 != 0) {
    return cudaErrorInvalidValue;
  }
  const uint32_t blocks = static_cast<uint32_t>((parts + kBlockLengths - 1) / kBlockLengths);
  offsets_kernel<<<blocks, kOffsetThreads, 0, stream>>>(lengths, parts, offsets, total);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
