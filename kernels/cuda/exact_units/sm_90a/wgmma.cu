// SPDX-License-Identifier: Apache-2.0
#include "cuda/exact_units/exact_units.h"
#include "cuda/exact_units/wgmma_compiled.h"
#include "cuda/mma_units/wgmma_launch.h"

namespace flashsparse::cuda {

namespace {

template <exact_units::Kind kind>
exact_units::WgmmaCompiled compiled_for(const exact_units::WgmmaPlan& plan) {
  using exact_units::compiled_wgmma;
  const int tokens = plan.info().tokens;
  return (tokens == 32    ? compiled_wgmma<32, kind>()
          : tokens == 64  ? compiled_wgmma<64, kind>()
          : tokens == 128 ? compiled_wgmma<128, kind>()
                          : compiled_wgmma<256, kind>())[plan.shape];
}

}  // namespace

cudaError_t exact_units_wgmma(const exact_units::WgmmaArguments& arguments, const TiledMatrix& x,
                              const exact_units::WgmmaPlan& plan, bool early, cudaStream_t stream) {
  using namespace exact_units;
  const WgmmaCompiled kernel =
      plan.kind == Kind::kDense ? compiled_for<Kind::kDense>(plan) : compiled_for<Kind::k24>(plan);
  return launch_wgmma(kernel, arguments, x, plan, early, stream);
}

}  // namespace flashsparse::cuda
