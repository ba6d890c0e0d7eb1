// SPDX-License-Identifier: Apache-2.0
#include "cuda/elementwise/elementwise.h"
#include "cuda/elementwise/gate_mul.cuh"
#include "cuda/shared/launch_early.h"

namespace flashsparse::cuda {

cudaError_t gate_mul(const elementwise::GateMulArguments& arguments, elementwise::Gate gate,
                     bool bfloat16, bool early, cudaStream_t stream) {
  const auto kernel = bfloat16 ? elementwise::gate_mul_kernel_of<BFloat16>(gate)
                               : elementwise::gate_mul_kernel_of<Float16>(gate);
  const dim3 blocks(arguments.tokens, arguments.blocks());
  return launch_early(kernel, blocks, elementwise::kGateThreads, 0, early, stream, arguments);
}

}  // namespace flashsparse::cuda
