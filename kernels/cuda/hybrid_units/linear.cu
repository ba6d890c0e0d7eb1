// SPDX-License-Identifier: Apache-2.0
#include "cuda/hybrid_units/hybrid_units.h"
#include "cuda/hybrid_units/linear_compiled.h"
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/launch_early.h"

namespace flashsparse::cuda {

cudaError_t hybrid_units_linear(const hybrid_units::Arguments& arguments,
                                const hybrid_units::LinearPlan& plan, bool bfloat16, bool early,
                                cudaStream_t stream) {
  using namespace hybrid_units;
  const Compiled* const compiled = sparse_24::with_values(
      plan.unit, [](auto values) { return compiled_linear<decltype(values)>(); });
  const auto kernel = bfloat16 ? compiled[plan.shape].bfloat16 : compiled[plan.shape].float16;
  const auto shared_bytes = static_cast<int>(plan.shared_bytes());
  const cudaError_t error = allow_shared(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  const mma_units::Cut cut = cut_of(plan, arguments.rows, arguments.cols, early);
  return launch_early(kernel, plan.blocks, plan.threads(), shared_bytes, early, stream, arguments,
                      cut);
}

}  // namespace flashsparse::cuda
