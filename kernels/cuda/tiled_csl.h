// SPDX-License-Identifier: Apache-2.0
// Launchers of the Tiled-CSL kernels. Pointers are device memory; nothing here synchronises.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/linear_plan.h"

namespace flashsparse::cuda {

// Unpacks words[num_words] to weight[rows, cols] (16-bit values, zeros included) on `stream` of the
// current device. `words` is aligned to 16 bytes, `offsets` has one entry a tile and one more;
// rows, cols >= 1. Returns cudaErrorInvalidValue where the arguments cannot be launched.
cudaError_t tiled_csl_unpack(const uint32_t* words, int64_t num_words, const int32_t* offsets,
                             int64_t rows, int64_t cols, uint16_t* weight, cudaStream_t stream);

// y [tokens, rows] = x [tokens, cols] times the transposed weight, plus bias [rows] or nothing, all
// of one 16-bit dtype, sums in fp32. tokens no more than the plan's shape has.
struct LinearCall {
  const uint32_t* words;  // on 16 bytes, and proven sound by tiled_csl_validate
  const int32_t* offsets;
  int64_t rows, cols, tokens;
  const uint16_t* x;  // on 16 bytes; rows x_stride (a multiple of 64) apart and zero up to there
  int64_t x_stride;
  const uint16_t* bias;  // or null
  uint16_t* y;           // on 8 bytes
  bool bfloat16;
  float* partials;     // plan.partial_floats() of them, of any content, on 16 bytes
  uint32_t* arrivals;  // of cuda::arrivals
};
cudaError_t tiled_csl_linear(const LinearCall& call, const tiled_csl::LinearPlan& plan,
                             cudaStream_t stream);

}  // namespace flashsparse::cuda
