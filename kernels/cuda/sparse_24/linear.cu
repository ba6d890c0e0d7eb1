// SPDX-License-Identifier: Apache-2.0
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/launch_early.h"
#include "cuda/sparse_24/codes.cuh"
#include "cuda/sparse_24/linear_compiled.h"
#include "cuda/sparse_24/sparse_24.h"
#include "cuda/sparse_24/values.cuh"

namespace flashsparse {
namespace {

cudaError_t launch(const sparse_24::Compiled& compiled, const mma_units::Arguments& arguments,
                   const sparse_24::LinearPlan& plan, bool bfloat16, bool early,
                   cudaStream_t stream) {
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const auto shared_bytes = static_cast<int>(plan.shared_bytes());
  const cudaError_t error = cuda::allow_shared(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  const mma_units::Cut cut = sparse_24::cut_of(plan, arguments.rows, arguments.cols, early);
  return cuda::launch_early(kernel, plan.blocks, plan.threads(), shared_bytes, early, stream,
                            arguments, cut);
}

}  // namespace

namespace cuda {

cudaError_t sparse_24_linear(const mma_units::Arguments& arguments,
                             const sparse_24::LinearPlan& plan, bool bfloat16, bool early,
                             cudaStream_t stream) {
  using namespace sparse_24;
  const Compiled* const compiled =
      with_values(plan.unit, [](auto values) { return compiled_linear<decltype(values)>(); });
  return launch(compiled[plan.shape], arguments, plan, bfloat16, early, stream);
}

cudaError_t sparse_24_linear_codes(const mma_units::Arguments& arguments,
                                   const sparse_24::LinearPlan& plan, bool bfloat16, bool early,
                                   cudaStream_t stream) {
  using namespace sparse_24;
  const Compiled* const compiled = plan.unit.type == ValueType::kFp8
                                       ? compiled_codes_linear<Fp8Codes>()
                                       : compiled_codes_linear<Int8Codes>();
  return launch(compiled[plan.shape], arguments, plan, bfloat16, early, stream);
}

}  // namespace cuda
}  // namespace flashsparse
