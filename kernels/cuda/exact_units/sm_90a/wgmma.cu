// SPDX-License-Identifier: Apache-2.0
#include "cuda/exact_units/exact_units.h"
#include "cuda/exact_units/wgmma_compiled.h"
#include "cuda/mma_units/wgmma_launch.h"

namespace flashsparse::cuda {

cudaError_t exact_units_wgmma(const exact_units::WgmmaArguments& arguments, const TiledMatrix& x,
                              const exact_units::WgmmaPlan& plan, bool early, cudaStream_t stream) {
  using namespace exact_units;
  const WgmmaCompiled kernel = compiled(plan);
  return launch_wgmma(kernel, arguments, x, plan, early, stream);
}

}  // namespace flashsparse::cuda
