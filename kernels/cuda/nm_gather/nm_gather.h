// SPDX-License-Identifier: Apache-2.0
// Launchers of the nm_gather kernels. Pointers are device memory; nothing here synchronises.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/nm_gather/linear_plan.h"
#include "formats/nm_gather.h"

namespace flashsparse::cuda {

struct NmGatherProduct {
  const void* values;  // on 16 bytes; the layout's pairs of its units
  const void* index;   // on 4 bytes
  const uint16_t* x;   // on 8 bytes; zero from cols up to x_stride, a multiple of 4
  int x_stride;
  const uint16_t* bias;  // or null
  uint16_t* y;           // on 8 bytes
  float* partials;       // plan.partial_floats(), on 16 bytes
  uint32_t* arrivals;    // plan.row_blocks() of cuda::arrivals where plan.splits > 1
  int64_t rows, cols;
  int tokens;
};

cudaError_t nm_gather_linear(const nm_gather::Layout& layout, const NmGatherProduct& product,
                             const nm_gather::Plan& plan, bool bfloat16, cudaStream_t stream);

// Unpacks the units from first_row on, a multiple of the rows that share an index, to
// weight[rows, cols], zeros included. `values` and `index` begin with those of first_row.
cudaError_t nm_gather_unpack(const nm_gather::Layout& layout, const void* values, const void* index,
                             int64_t rows, int64_t cols, uint16_t* weight, cudaStream_t stream);

}  // namespace flashsparse::cuda
