// SPDX-License-Identifier: Apache-2.0
#include "cuda/dense/dense.h"
#include "cuda/dense/gemv.cuh"
#include "cuda/shared/allow_shared.h"

namespace flashsparse::cuda {

cudaError_t gemv(const DenseCall& call, int shape, cudaStream_t stream) {
  const dense::CompiledGemv& compiled = dense::kCompiledGemv[shape];
  const int64_t rows = dense::kGemvShapes[shape].rows();
  const auto blocks = static_cast<unsigned>((call.rows + rows - 1) / rows);
  const auto kernel = call.bfloat16 ? compiled.bfloat16 : compiled.float16;
  const cudaError_t error = allow_shared(kernel, compiled.shared_bytes);
  if (error != cudaSuccess) return error;
  kernel<<<blocks, compiled.threads, compiled.shared_bytes, stream>>>(dense::arguments_of(call));
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
