// SPDX-License-Identifier: Apache-2.0
#include "cuda/linear_kernel.cuh"
#include "cuda/tiled_csl.h"

namespace flashsparse::cuda {

using namespace tiled_csl;

cudaError_t tiled_csl_linear(const LinearCall& call, const LinearPlan& plan, cudaStream_t stream) {
  const CompiledLinear& compiled = kCompiledLinear[plan.shape];
  const auto kernel = call.bfloat16 ? compiled.bfloat16 : compiled.float16;
  // More than 48 KB of shared memory must be asked for, once per kernel and device; again is cheap.
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(compiled.shared_bytes));
  if (error != cudaSuccess) return error;
  LinearArguments arguments;
  arguments.words = call.words;
  arguments.offsets = call.offsets;
  arguments.x = call.x;
  arguments.x_stride = static_cast<int>(call.x_stride);
  arguments.bias = call.bias;
  arguments.y = call.y;
  arguments.partials = call.partials;
  arguments.arrivals = call.arrivals;
  arguments.rows = static_cast<int>(call.rows);
  arguments.cols = static_cast<int>(call.cols);
  arguments.tokens = static_cast<int>(call.tokens);
  arguments.tile_rows = static_cast<int>(tile_rows(call.rows));
  arguments.tile_cols = static_cast<int>(tile_cols(call.cols));
  kernel<<<plan.blocks, compiled.threads, compiled.shared_bytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
