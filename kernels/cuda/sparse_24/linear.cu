// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/linear_compiled.h"
#include "cuda/sparse_24/sparse_24.h"
#include "cuda/sparse_24/values.cuh"

namespace flashsparse::cuda {

cudaError_t sparse_24_linear(const mma_units::Arguments& arguments,
                             const sparse_24::LinearPlan& plan, bool bfloat16,
                             cudaStream_t stream) {
  const sparse_24::Compiled& compiled = sparse_24::with_values(plan.unit, [](auto values) {
    return sparse_24::compiled_linear<decltype(values)>();
  })[plan.shape];
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const auto shared_bytes = static_cast<int>(plan.shared_bytes());
  // More than 48 KB of shared memory must be asked for, once per kernel and device; again is cheap.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  const mma_units::Cut cut{plan.row_warps, plan.column_warps, plan.weight_stages, plan.x_stages};
  kernel<<<plan.blocks, plan.threads(), shared_bytes, stream>>>(arguments, cut);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
