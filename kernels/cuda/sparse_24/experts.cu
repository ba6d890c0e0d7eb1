// SPDX-License-Identifier: Apache-2.0
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/launch_early.h"
#include "cuda/sparse_24/experts.h"
#include "cuda/sparse_24/experts_compiled.h"
#include "cuda/sparse_24/values.cuh"

namespace flashsparse::cuda {

cudaError_t sparse_24_experts(const experts::Arguments& arguments,
                              const sparse_24::ExpertsProduct& product,
                              const sparse_24::ExpertsPlan& plan, bool bfloat16, bool early,
                              bool early_weights, cudaStream_t stream) {
  using namespace sparse_24;
  const ExpertsCompiled* const all =
      with_values(product.unit, [](auto values) -> const ExpertsCompiled* {
        using Values = decltype(values);
        if constexpr (experts_are_compiled(Values::kLayout)) {
          return compiled_experts<Values>();
        } else {
          return nullptr;
        }
      });
  if (!all) return cudaErrorInvalidValue;
  const auto kernel = bfloat16 ? all[plan.shape].bfloat16 : all[plan.shape].float16;
  const auto shared_bytes = static_cast<int>(plan.shared_bytes(product));
  const cudaError_t error = allow_shared(reinterpret_cast<const void*>(kernel), shared_bytes);
  if (error != cudaSuccess) return error;
  return launch_early(kernel, plan.blocks, plan.threads(product.cols), shared_bytes, early, stream,
                      arguments, plan.cut(product, early && early_weights));
}

}  // namespace flashsparse::cuda
