// SPDX-License-Identifier: Apache-2.0
#include "cuda/exact_units/exact_units.h"
#include "cuda/exact_units/wgmma_compiled.h"
#include "cuda/mma_units/wgmma_launch.h"

namespace flashsparse::cuda {

cudaError_t exact_units_wgmma(const exact_units::WgmmaArguments& arguments, const TiledMatrix& x,
                              const exact_units::WgmmaPlan& plan, bool early, cudaStream_t stream) {
  using namespace exact_units;
  const int tokens = plan.info().tokens;
  const WgmmaCompiled* const compiled = tokens == 32   ? compiled_wgmma<32>()
                                        : tokens == 64 ? compiled_wgmma<64>()
                                                       : compiled_wgmma<128>();
  return launch_wgmma(compiled[plan.shape], arguments, x, plan, early, stream);
}

}  // namespace flashsparse::cuda
