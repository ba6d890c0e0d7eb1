// SPDX-License-Identifier: Apache-2.0
// Launches the grouped kernels of sparse_24 (experts.cuh, experts_wgmma.cuh).
#pragma once
#include <cuda_runtime_api.h>

#include "common/tensor_map.h"
#include "cuda/experts/arguments.h"
#include "cuda/experts/wgmma_arguments.h"
#include "cuda/sparse_24/experts_plan.h"
#include "cuda/sparse_24/experts_wgmma_plan.h"

namespace flashsparse::cuda {

// Needs a plan whose broken_rule() is null for this product. `early`: launches with programmatic
// dependent launch; `early_weights`: the preceding kernel writes x and not the order.
cudaError_t sparse_24_experts(const experts::Arguments& arguments,
                              const sparse_24::ExpertsProduct& product,
                              const sparse_24::ExpertsPlan& plan, bool bfloat16, bool early,
                              bool early_weights, cudaStream_t stream);

// The same by wgmma, on Hopper; `x` maps rows in the order of slots, in tiles of
// plan.copied_tokens(). `early`: the preceding kernels write neither weights nor, the last of them,
// the order.
cudaError_t sparse_24_experts_wgmma(const experts::WgmmaArguments& arguments, const TiledMatrix& x,
                                    const sparse_24::ExpertsWgmmaPlan& plan,
                                    sparse_24::UnitLayout unit, bool bfloat16, bool early,
                                    cudaStream_t stream);

}  // namespace flashsparse::cuda
