// SPDX-License-Identifier: Apache-2.0
// Launchers of the nm_spmm kernels. Pointers are device memory; nothing here synchronizes.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/nm_spmm/linear_plan.h"

namespace flashsparse::cuda {

struct NmSpmmProduct {
  const void* values;  // 16-byte aligned
  const void* index;   // 4-byte aligned, as the next two
  const void* columns;
  const void* packed;
  const float* x;      // [tokens, cols]
  const float* bias;   // or null
  float* y;            // 16-byte aligned
  float* xt;           // plan.xt_floats(), 16-byte aligned
  float* partials;     // plan.partial_floats(), 16-byte aligned
  uint32_t* arrivals;  // plan.tiles() counters of cuda::arrivals if plan.splits > 1
  int64_t rows, cols, tokens;
};

cudaError_t nm_spmm_linear(const nm_spmm::Layout& layout, const NmSpmmProduct& product,
                           const nm_spmm::Plan& plan, cudaStream_t stream);

}  // namespace flashsparse::cuda
