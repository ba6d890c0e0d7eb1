// SPDX-License-Identifier: Apache-2.0
// Launches scale_sums_kernel (scale_sums.cuh).
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/mma_units/scale_sums.h"

namespace flashsparse::cuda {

// Pointers are device memory, rows and tokens >= 1; it does not synchronize.
cudaError_t scale_sums(const mma_units::SumsToScale& sums, bool bfloat16, cudaStream_t stream);

}  // namespace flashsparse::cuda
