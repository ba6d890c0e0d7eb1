// SPDX-License-Identifier: Apache-2.0
#include "cuda/dense.h"
#include "cuda/gemv.cuh"

namespace flashsparse::cuda {

cudaError_t gemv(const DenseCall& call, int shape, cudaStream_t stream) {
  const dense::CompiledGemv& compiled = dense::kCompiledGemv[shape];
  const int64_t rows = dense::kGemvShapes[shape].rows();
  const auto blocks = static_cast<unsigned>((call.rows + rows - 1) / rows);
  const auto kernel = call.bfloat16 ? compiled.bfloat16 : compiled.float16;
  kernel<<<blocks, compiled.threads, 0, stream>>>(dense::arguments_of(call));
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
