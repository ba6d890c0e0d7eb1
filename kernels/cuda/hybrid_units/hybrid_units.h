// SPDX-License-Identifier: Apache-2.0
// Launchers of the kernels of hybrid_units. Pointers are device memory; nothing here synchronizes.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/hybrid_units/linear_arguments.h"
#include "cuda/hybrid_units/linear_plan.h"
#include "cuda/hybrid_units/wgmma_plan.h"
#include "cuda/shared/tensor_map.h"

namespace flashsparse::cuda {

// Needs a plan whose broken_rule() is null for this product, and offsets that are valid. `early`:
// launches with programmatic dependent launch, so that the kernel may start before the preceding
// one, which may write x, has ended; compute capability 9.0 and later.
cudaError_t hybrid_units_linear(const hybrid_units::Arguments& arguments,
                                const hybrid_units::LinearPlan& plan, bool bfloat16, bool early,
                                cudaStream_t stream);

// The same by wgmma, on compute capability 9.0; `x` maps tiles of plan.copied_tokens() rows.
cudaError_t hybrid_units_wgmma(const hybrid_units::WgmmaArguments& arguments, const TiledMatrix& x,
                               const hybrid_units::WgmmaPlan& plan, bool bfloat16, bool early,
                               cudaStream_t stream);

// Unpacks a stream with valid offsets to weight[rows, cols] (16-bit values, zeros included) on
// `stream` of the current device; rows, cols >= 1. Rows from a multiple of 16 on can be unpacked
// alone: pass the whole stream, the offsets of their units, and their row scales if there are any.
cudaError_t hybrid_units_unpack(const uint32_t* units, const int32_t* offsets, const float* scales,
                                hybrid_units::UnitLayout unit, int64_t rows, int64_t cols,
                                bool bfloat16, uint16_t* weight, cudaStream_t stream);

}  // namespace flashsparse::cuda
