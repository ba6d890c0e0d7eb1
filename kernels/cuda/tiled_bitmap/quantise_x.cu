// SPDX-License-Identifier: Apache-2.0
#include "common/mma.cuh"
#include "cuda/mma_units/quantise_x.cuh"
#include "cuda/shared/launch_early.h"
#include "cuda/tiled_bitmap/codes_of_x.cuh"
#include "cuda/tiled_bitmap/linear.h"

namespace flashsparse::cuda {

cudaError_t tiled_bitmap_quantise_x(const uint16_t* x, int64_t x_stride, int64_t tokens,
                                    bool bfloat16, bool is_early, uint16_t* codes, float* scales,
                                    uint32_t* sums, cudaStream_t stream) {
  using tiled_bitmap::CodesOfX;
  const auto kernel = bfloat16 ? mma_units::quantise_x_kernel<BFloat16, CodesOfX>
                               : mma_units::quantise_x_kernel<Float16, CodesOfX>;
  return launch_early(kernel, static_cast<int>(tokens), mma_units::kQuantiseThreads, 0, is_early,
                      stream, x, static_cast<int>(x_stride), reinterpret_cast<uint4*>(codes),
                      scales, sums);
}

}  // namespace flashsparse::cuda
