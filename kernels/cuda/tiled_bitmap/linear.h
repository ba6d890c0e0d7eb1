// SPDX-License-Identifier: Apache-2.0
// Launchers of the decode kernel of tiled_bitmap and of the one that quantizes x for it. Pointers
// are device memory; nothing here synchronizes.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/tiled_bitmap/linear_arguments.h"
#include "cuda/tiled_bitmap/linear_plan.h"

namespace flashsparse::cuda {

// Needs a plan whose broken_rule() is null for this product, and tensors that tiled_bitmap_validate
// accepts.
cudaError_t tiled_bitmap_linear(const tiled_bitmap::Arguments& arguments,
                                const tiled_bitmap::LinearPlan& plan, bool bfloat16,
                                cudaStream_t stream);

// Quantizes x to int8 [tokens, quantised_stride(x_stride)], two values per uint16_t, 16-byte
// aligned; writes scales and sums of tokens, too (cuda/mma_units/quantise_x.cuh). x is 16-byte
// aligned, its stride a multiple of 8, and zero past its columns; tokens >= 1. `is_early` as in
// LinearPlan.
cudaError_t tiled_bitmap_quantise_x(const uint16_t* x, int64_t x_stride, int64_t tokens,
                                    bool bfloat16, bool is_early, uint16_t* codes, float* scales,
                                    uint32_t* sums, cudaStream_t stream);

}  // namespace flashsparse::cuda
