// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_csl/linear.cuh"
#include "cuda/tiled_csl/linear_launch.cuh"
#include "cuda/tiled_csl/tiled_csl.h"

namespace flashsparse::cuda {

cudaError_t tiled_csl_linear(const tiled_csl::Words& weight, const linear::Arguments& arguments,
                             const tiled_csl::LinearPlan& plan, bool bfloat16,
                             cudaStream_t stream) {
  return linear::launch(tiled_csl::kCompiledLinear[plan.shape], bfloat16, weight, arguments,
                        plan.blocks, stream);
}

}  // namespace flashsparse::cuda
