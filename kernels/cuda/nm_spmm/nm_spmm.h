// SPDX-License-Identifier: Apache-2.0
// Launchers of the nm_spmm kernels. Pointers are device memory; nothing here synchronises.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/nm_spmm/linear_plan.h"

namespace flashsparse::cuda {

struct NmSpmmProduct {
  const void* values;   // on 16 bytes, as all floats here
  const void* index;    // on 4 bytes
  const void* columns;  // on 4 bytes
  const void* packed;   // on 4 bytes
  const float* x;       // [tokens, cols], on 4 bytes
  const float* bias;    // on 4 bytes, or null
  float* y;
  float* xt;           // plan.xt_floats()
  float* partials;     // plan.partial_floats()
  uint32_t* arrivals;  // plan.tiles() of cuda::arrivals where plan.splits > 1
  int64_t rows, cols, tokens;
};

cudaError_t nm_spmm_linear(const nm_spmm::Layout& layout, const NmSpmmProduct& product,
                           const nm_spmm::Plan& plan, cudaStream_t stream);

}  // namespace flashsparse::cuda
