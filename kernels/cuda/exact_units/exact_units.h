// SPDX-License-Identifier: Apache-2.0
// Launchers of the kernels of exact_units. Pointers are device memory; nothing here synchronizes.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/tensor_map.h"
#include "cuda/exact_units/linear_arguments.h"
#include "cuda/exact_units/linear_plan.h"
#include "cuda/exact_units/wgmma_plan.h"

namespace flashsparse::cuda {

// Needs a plan whose broken_rule() is null for this product. `early`: launches with programmatic
// dependent launch, so that the kernel may start before the preceding one, which may write x, has
// ended; compute capability 9.0 and later.
cudaError_t exact_units_linear(const exact_units::Arguments& arguments,
                               const exact_units::LinearPlan& plan, bool early,
                               cudaStream_t stream);

// Needs a plan whose broken_rule() is null for this product, and compute capability 9.0. The tiles
// of `x` have plan.copied_tokens() rows. `early` as above.
cudaError_t exact_units_wgmma(const exact_units::WgmmaArguments& arguments, const TiledMatrix& x,
                              const exact_units::WgmmaPlan& plan, bool early, cudaStream_t stream);

// Unpacks units of a kind to weight[rows, cols], bfloat16, on `stream` of the current device; rows,
// cols >= 1. Rows from a multiple of 16 on can be unpacked alone: pass their units, scales, slots
// and offsets, and the whole list.
cudaError_t exact_units_unpack(const uint32_t* units, exact_units::Kind kind, const float* scales,
                               const exact_units::Exceptions& exceptions, int64_t rows,
                               int64_t cols, uint16_t* weight, cudaStream_t stream);

// Turns units of 2:4 into as many of sparse_24, with bfloat16 values.
cudaError_t exact_units_widen_24(const uint32_t* units, const float* scales,
                                 const exact_units::Exceptions& exceptions, int64_t rows,
                                 int64_t cols, uint32_t* widened, cudaStream_t stream);

}  // namespace flashsparse::cuda
