// SPDX-License-Identifier: Apache-2.0
#include "cuda/elementwise/elementwise.h"
#include "cuda/elementwise/rope_cache.cuh"
#include "cuda/shared/launch_early.h"

namespace flashsparse::cuda {

cudaError_t rope_cache(const elementwise::RopeCacheArguments& arguments, bool bfloat16, bool early,
                       cudaStream_t stream) {
  const auto kernel =
      bfloat16 ? elementwise::rope_cache_kernel<BFloat16> : elementwise::rope_cache_kernel<Float16>;
  const dim3 blocks(arguments.tokens, arguments.blocks());
  return launch_early(kernel, blocks, elementwise::kRopeThreads, 0, early, stream, arguments);
}

}  // namespace flashsparse::cuda
