// SPDX-License-Identifier: Apache-2.0
// Launcher of the linear kernel of tiled_bitmap. Pointers are device memory; it does not wait.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/tiled_bitmap/linear_arguments.h"
#include "cuda/tiled_bitmap/linear_plan.h"

namespace flashsparse::cuda {

// By a plan that breaks no rule for this product, from tensors that tiled_bitmap_validate accepts.
cudaError_t tiled_bitmap_linear(const tiled_bitmap::Arguments& arguments,
                                const tiled_bitmap::LinearPlan& plan, bool bfloat16,
                                cudaStream_t stream);

}  // namespace flashsparse::cuda
