// SPDX-License-Identifier: Apache-2.0
// Launcher of the wgmma kernel of tiled_bitmap. Pointers are device memory; it does not wait.
#pragma once
#include <cuda_runtime_api.h>

#include "common/tensor_map.h"
#include "cuda/tiled_bitmap/wgmma_arguments.h"
#include "cuda/tiled_bitmap/wgmma_plan.h"

namespace flashsparse::cuda {

// By a plan that breaks no rule for this product, from tensors that tiled_bitmap_validate accepts,
// on compute capability 9.0. Tiles of x have as many rows as a block copies: of the plan's tokens
// the share of a block of the cluster.
cudaError_t tiled_bitmap_wgmma(const tiled_bitmap::WgmmaArguments& arguments, const TiledMatrix& x,
                               const tiled_bitmap::WgmmaPlan& plan, bool bfloat16,
                               cudaStream_t stream);

}  // namespace flashsparse::cuda
