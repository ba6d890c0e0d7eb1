// SPDX-License-Identifier: Apache-2.0
#include "cuda/mma_units/wgmma_launch.h"
#include "cuda/sparse_24/codes.cuh"
#include "cuda/sparse_24/sparse_24.h"
#include "cuda/sparse_24/wgmma_compiled.h"

namespace flashsparse {
namespace {

const sparse_24::WgmmaCompiled* compiled_for(const sparse_24::WgmmaPlan& plan) {
  using namespace sparse_24;
  if (plan.x_bytes == 1) {
    return plan.unit.type == ValueType::kFp8 ? compiled_codes_wgmma<Fp8Codes>()
                                             : compiled_codes_wgmma<Int8Codes>();
  }
  return with_values(plan.unit, [](auto values) { return compiled_wgmma<decltype(values)>(); });
}

}  // namespace

namespace cuda {

cudaError_t sparse_24_wgmma(const mma_units::WgmmaArguments& arguments, const TiledMatrix& x,
                            const sparse_24::WgmmaPlan& plan, bool bfloat16, bool early,
                            cudaStream_t stream) {
  const sparse_24::WgmmaCompiled& compiled = compiled_for(plan)[plan.shape];
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  return launch_wgmma(kernel, arguments, x, plan, early, stream);
}

}  // namespace cuda
}  // namespace flashsparse
