// SPDX-License-Identifier: Apache-2.0
// Launchers of the kernels of sparse_24. Pointers are device memory; nothing here synchronizes.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/tensor_map.h"
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/mma_units/wgmma_arguments.h"
#include "cuda/sparse_24/linear_plan.h"
#include "cuda/sparse_24/wgmma_plan.h"

namespace flashsparse::cuda {

// Needs a plan whose broken_rule() is null for this product. `early`: launches with programmatic
// dependent launch, so that the kernel may start before the preceding one, which may write x, has
// ended; compute capability 9.0 and later.
cudaError_t sparse_24_linear(const mma_units::Arguments& arguments,
                             const sparse_24::LinearPlan& plan, bool bfloat16, bool early,
                             cudaStream_t stream);

// The same for quantized x (W8A8).
cudaError_t sparse_24_linear_codes(const mma_units::Arguments& arguments,
                                   const sparse_24::LinearPlan& plan, bool bfloat16, bool early,
                                   cudaStream_t stream);

// Needs a plan whose broken_rule() is null for this product, and compute capability 9.0. The tiles
// of `x` have plan.copied_tokens() rows. `early` as above.
cudaError_t sparse_24_wgmma(const mma_units::WgmmaArguments& arguments, const TiledMatrix& x,
                            const sparse_24::WgmmaPlan& plan, bool bfloat16, bool early,
                            cudaStream_t stream);

// Quantizes x to e4m3 or int8 [tokens, quantised_stride(x_stride)], with scales of tokens
// (cuda/mma_units/quantise_x.cuh); `wide`: e4m3 as 16-bit floats, in the order of columns. x is
// 16-byte aligned, its stride a multiple of 8, and zero past its columns; tokens >= 1. `early` as
// above.
cudaError_t sparse_24_quantise_x(const uint16_t* x, int64_t x_stride, int64_t tokens,
                                 ValueType type, bool wide, bool bfloat16, bool early,
                                 uint16_t* codes, float* scales, cudaStream_t stream);

// Unpacks units to weight[rows, cols] (16-bit values, zeros included) on `stream` of the current
// device; rows, cols >= 1. Rows from a multiple of 16 on can be unpacked alone: pass their units,
// and their row scales if there are any.
cudaError_t sparse_24_unpack(const uint32_t* units, const float* scales, sparse_24::UnitLayout unit,
                             int64_t rows, int64_t cols, bool bfloat16, uint16_t* weight,
                             cudaStream_t stream);

}  // namespace flashsparse::cuda
