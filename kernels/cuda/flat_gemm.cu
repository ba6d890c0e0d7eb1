// SPDX-License-Identifier: Apache-2.0
#include "cuda/dense.h"
#include "cuda/flat_gemm.cuh"

namespace flashsparse::cuda {

cudaError_t flat_gemm(const DenseCall& call, const dense::FlatPlan& plan, float* partials,
                      uint32_t* counters, cudaStream_t stream) {
  const dense::CompiledFlat& compiled = dense::kCompiledFlat[plan.shape];
  dense::FlatArguments arguments;
  arguments.dense = dense::arguments_of(call);
  arguments.partials = partials;
  arguments.arrivals = counters;
  const dim3 grid(static_cast<unsigned>(plan.row_blocks(call.rows)), plan.split);
  const auto kernel = call.bfloat16 ? compiled.bfloat16 : compiled.float16;
  // More than 48 KB of shared memory must be asked for, once per kernel and device; again is cheap.
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(compiled.shared_bytes));
  if (error != cudaSuccess) return error;
  kernel<<<grid, compiled.threads, compiled.shared_bytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
