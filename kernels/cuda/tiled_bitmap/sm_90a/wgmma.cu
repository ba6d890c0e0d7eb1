// SPDX-License-Identifier: Apache-2.0
#include "common/mma.cuh"
#include "cuda/mma_units/wgmma_launch.h"
#include "cuda/tiled_bitmap/wgmma.h"
#include "cuda/tiled_bitmap/wgmma_dispatch.h"

namespace flashsparse::cuda {

cudaError_t tiled_bitmap_wgmma(const tiled_bitmap::WgmmaArguments& arguments, const TiledMatrix& x,
                               const tiled_bitmap::WgmmaPlan& plan, tiled_bitmap::Operands operands,
                               bool bfloat16, cudaStream_t stream) {
  using tiled_bitmap::compiled_wgmma;
  using tiled_bitmap::WgmmaKernel;
  const WgmmaKernel kernel = compiled_wgmma(operands, bfloat16)[plan.shape];
  return launch_wgmma(kernel, arguments, x, plan, false, stream);
}

}  // namespace flashsparse::cuda
