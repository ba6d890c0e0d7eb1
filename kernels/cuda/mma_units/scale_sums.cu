// SPDX-License-Identifier: Apache-2.0
#include "cuda/mma_units/scale_sums.cuh"
#include "cuda/mma_units/scale_sums_launch.h"

namespace flashsparse::cuda {
namespace {

template <class Sum>
auto kernel_of(bool bfloat16) {
  return bfloat16 ? mma_units::scale_sums_kernel<BFloat16, Sum>
                  : mma_units::scale_sums_kernel<Float16, Sum>;
}

}  // namespace

cudaError_t scale_sums(const mma_units::SumsToScale& sums, bool bfloat16, cudaStream_t stream) {
  const int64_t blocks = mma_units::scale_blocks(sums.rows, sums.tokens);
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  const auto kernel = sums.are_floats ? kernel_of<float>(bfloat16) : kernel_of<int32_t>(bfloat16);
  kernel<<<static_cast<uint32_t>(blocks), mma_units::kScaleThreads, 0, stream>>>(sums);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
