// SPDX-License-Identifier: Apache-2.0
#include "cuda/elementwise/elementwise.h"
#include "cuda/elementwise/rms_norm.cuh"
#include "cuda/shared/launch_early.h"

namespace flashsparse::cuda {

cudaError_t rms_norm(const elementwise::RmsNormArguments& arguments, bool bfloat16, bool early,
                     cudaStream_t stream) {
  const int vectors = arguments.vectors_per_thread();
  const auto kernel = bfloat16 ? elementwise::rms_norm_kernel_of<BFloat16>(vectors)
                               : elementwise::rms_norm_kernel_of<Float16>(vectors);
  const dim3 blocks(arguments.tokens, arguments.heads);
  return launch_early(kernel, blocks, arguments.threads(), 0, early, stream, arguments);
}

}  // namespace flashsparse::cuda
