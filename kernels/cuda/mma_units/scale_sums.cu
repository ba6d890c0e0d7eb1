// SPDX-License-Identifier: Apache-2.0
#include "cuda/mma_units/scale_sums.cuh"
#include "cuda/tiled_bitmap/linear.h"

namespace flashsparse::cuda {

cudaError_t tiled_bitmap_scale_sums(const mma_units::SumsToScale& sums, bool bfloat16,
                                    cudaStream_t stream) {
  const int64_t blocks = mma_units::scale_blocks(sums.rows, sums.tokens);
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  const auto kernel =
      bfloat16 ? mma_units::scale_sums_kernel<BFloat16> : mma_units::scale_sums_kernel<Float16>;
  kernel<<<static_cast<uint32_t>(blocks), mma_units::kScaleThreads, 0, stream>>>(sums);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
