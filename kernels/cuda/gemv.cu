// SPDX-License-Identifier: Apache-2.0
#include "cuda/dense.h"
#include "cuda/gemv.cuh"

namespace flashsparse::cuda {

cudaError_t gemv(const DenseCall& call, int shape, cudaStream_t stream) {
  const dense::CompiledGemv& compiled = dense::kCompiledGemv[shape];
  const int64_t rows = dense::kGemvShapes[shape].rows();
  const auto blocks = static_cast<unsigned>((call.rows + rows - 1) / rows);
  const auto kernel = call.bfloat16 ? compiled.bfloat16 : compiled.float16;
  // More than 48 KB of shared memory must be asked for, once per kernel and device; again is cheap.
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(compiled.shared_bytes));
  if (error != cudaSuccess) return error;
  kernel<<<blocks, compiled.threads, compiled.shared_bytes, stream>>>(dense::arguments_of(call));
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
