// SPDX-License-Identifier: Apache-2.0
#include "cuda/mma_units/wgmma_launch.h"
#include "cuda/sparse_24/experts.h"
#include "cuda/sparse_24/experts_wgmma_compiled.h"
#include "cuda/sparse_24/values.cuh"

namespace flashsparse::cuda {

cudaError_t sparse_24_experts_wgmma(const experts::WgmmaArguments& arguments, const TiledMatrix& x,
                                    const sparse_24::ExpertsWgmmaPlan& plan,
                                    sparse_24::UnitLayout unit, bool bfloat16, bool early,
                                    cudaStream_t stream) {
  using namespace sparse_24;
  const ExpertsWgmmaCompiled* const all =
      with_values(unit, [](auto values) -> const ExpertsWgmmaCompiled* {
        using Values = decltype(values);
        if constexpr (experts_are_compiled(Values::kLayout)) {
          return compiled_experts_wgmma<Values>();
        } else {
          return nullptr;
        }
      });
  if (!all) return cudaErrorInvalidValue;
  const auto kernel = bfloat16 ? all[plan.shape].bfloat16 : all[plan.shape].float16;
  if (!kernel) return cudaErrorInvalidValue;
  return launch_wgmma(kernel, arguments, x, plan, early, stream);
}

}  // namespace flashsparse::cuda
