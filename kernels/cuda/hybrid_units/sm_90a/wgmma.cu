// SPDX-License-Identifier: Apache-2.0
#include "cuda/hybrid_units/hybrid_units.h"
#include "cuda/hybrid_units/wgmma_compiled.h"
#include "cuda/mma_units/wgmma_launch.h"
#include "cuda/sparse_24/values.cuh"

namespace flashsparse::cuda {

cudaError_t hybrid_units_wgmma(const hybrid_units::WgmmaArguments& arguments, const TiledMatrix& x,
                               const hybrid_units::WgmmaPlan& plan, bool bfloat16, bool early,
                               cudaStream_t stream) {
  using namespace hybrid_units;
  const WgmmaCompiled* const compiled =
      sparse_24::with_values(plan.unit, [](auto values) -> const WgmmaCompiled* {
        using Values = decltype(values);
        if constexpr (has_wgmma(Values::kLayout)) {
          return compiled_wgmma<Values>();
        } else {
          return nullptr;
        }
      });
  if (!compiled) return cudaErrorInvalidValue;
  const auto kernel = bfloat16 ? compiled[plan.shape].bfloat16 : compiled[plan.shape].float16;
  return launch_wgmma(kernel, arguments, x, plan, early, stream);
}

}  // namespace flashsparse::cuda
