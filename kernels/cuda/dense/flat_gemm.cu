// SPDX-License-Identifier: Apache-2.0
#include "cuda/dense/dense.h"
#include "cuda/dense/flat_gemm.cuh"
#include "cuda/shared/allow_shared.h"

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
  const cudaError_t error = allow_shared(kernel, compiled.shared_bytes);
  if (error != cudaSuccess) return error;
  kernel<<<grid, compiled.threads, compiled.shared_bytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
