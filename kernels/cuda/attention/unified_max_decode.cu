// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/unified_max_decode.h"
#include "cuda/attention/unified_max_kernel.cuh"
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/launch_early.h"

namespace flashsparse::cuda {

using namespace unified_max;

cudaError_t unified_max_decode(const DecodeArguments& arguments, const Problem& problem,
                               const DecodePlan& plan, bool bfloat16, bool early,
                               cudaStream_t stream) {
  const DecodeKernel kernel = problem.element_bytes == 1
                                  ? fp8_kernel(problem, bfloat16)
                                  : compiled_decode<Native>(problem, bfloat16);
  const int64_t heads = problem.kv_heads * problem.group_blocks();
  constexpr int64_t kMostOfAxis = 65535;
  if (!kernel || heads > kMostOfAxis || problem.sequences > kMostOfAxis) {
    return cudaErrorInvalidValue;
  }
  const uint32_t shared_bytes = plan.shared_bytes(problem);
  const cudaError_t error = allow_shared(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(plan.splits, static_cast<uint32_t>(heads),
                  static_cast<uint32_t>(problem.sequences));
  return launch_early(kernel, grid, plan.warps * 32, shared_bytes, early, stream, arguments);
}

}  // namespace flashsparse::cuda
