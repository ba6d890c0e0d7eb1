// SPDX-License-Identifier: Apache-2.0
// Launchers of the linear kernel of tiled_bitmap and of the one that quantizes x for it. Pointers
// are device memory; they do not wait.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/tiled_bitmap/linear_arguments.h"
#include "cuda/tiled_bitmap/linear_plan.h"

namespace flashsparse::cuda {

// By a plan that breaks no rule for this product, from tensors that tiled_bitmap_validate accepts.
cudaError_t tiled_bitmap_linear(const tiled_bitmap::Arguments& arguments,
                                const tiled_bitmap::LinearPlan& plan, bool bfloat16,
                                cudaStream_t stream);

// Writes codes of int8 [tokens, quantised_stride(x_stride)], two in 16 bits, on 16 bytes, and
// scales and sums of tokens (cuda/mma_units/quantise_x.cuh). x is on 16 bytes, its stride a
// multiple of 8, zero beyond its columns; tokens >= 1. `is_early` as a plan has it.
cudaError_t tiled_bitmap_quantise_x(const uint16_t* x, int64_t x_stride, int64_t tokens,
                                    bool bfloat16, bool is_early, uint16_t* codes, float* scales,
                                    uint32_t* sums, cudaStream_t stream);

}  // namespace flashsparse::cuda
