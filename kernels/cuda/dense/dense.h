// SPDX-License-Identifier: Apache-2.0
// CUDA kernels of dense layers, for callers without nvcc: plain pointers and sizes. All are
// launched on `stream` and return the launch's error; nothing synchronizes.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/dense/dense_plan.h"

namespace flashsparse::cuda {

// y [tokens, rows] = x [tokens, cols] times the transposed weight [rows, cols], plus bias [rows] or
// nothing, all of one 16-bit dtype, accumulated in fp32.
struct DenseCall {
  const uint16_t* x;       // 16-byte aligned; rows x_stride (a multiple of 8) apart,
  int64_t x_stride;        // zero from cols up to a multiple of 8
  const uint16_t* weight;  // rows weight_stride apart
  int64_t weight_stride;
  const uint16_t* bias;  // or null
  uint16_t* y;           // 8-byte aligned
  int64_t rows, cols, tokens;
  bool bfloat16;

  // What the fast kernels require: 16-byte aligned rows of the weight, and whole chunks of 8.
  bool aligned() const {
    return reinterpret_cast<uintptr_t>(weight) % 16 == 0 && weight_stride % 8 == 0 && cols % 8 == 0;
  }
};

// partials: plan.partial_floats(rows) of any content, 16-byte aligned; counters:
// plan.row_blocks(rows) of cuda::arrivals. Neither is read if plan.split is 1.
cudaError_t flat_gemm(const DenseCall& call, const dense::FlatPlan& plan, float* partials,
                      uint32_t* counters, cudaStream_t stream);

// shape: an index into dense::kGemvShapes.
cudaError_t gemv(const DenseCall& call, int shape, cudaStream_t stream);

}  // namespace flashsparse::cuda
