// SPDX-License-Identifier: Apache-2.0
// Launcher of the prefill kernel of tiled_bitmap. Pointers are device memory; it does not
// synchronize.
#pragma once
#include <cuda_runtime_api.h>

#include "common/tensor_map.h"
#include "cuda/tiled_bitmap/wgmma_arguments.h"
#include "cuda/tiled_bitmap/wgmma_plan.h"

namespace flashsparse::cuda {

// Needs a plan whose broken_rule() is null for this product, tensors that tiled_bitmap_validate
// accepts, and compute capability 9.0. The tiles of `x` have plan.copied_tokens() rows.
cudaError_t tiled_bitmap_wgmma(const tiled_bitmap::WgmmaArguments& arguments, const TiledMatrix& x,
                               const tiled_bitmap::WgmmaPlan& plan, tiled_bitmap::Operands operands,
                               bool bfloat16, cudaStream_t stream);

}  // namespace flashsparse::cuda
