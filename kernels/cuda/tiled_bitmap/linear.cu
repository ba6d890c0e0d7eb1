// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_bitmap/linear.h"
#include "cuda/tiled_bitmap/linear_compiled.h"
#include "cuda/tiled_bitmap/linear_shared.h"

namespace flashsparse::cuda {

cudaError_t tiled_bitmap_linear(const tiled_bitmap::Arguments& arguments,
                                const tiled_bitmap::LinearPlan& plan, bool bfloat16,
                                cudaStream_t stream) {
  const tiled_bitmap::Compiled& compiled =
      plan.info().tokens <= 16 ? tiled_bitmap::compiled_linear<0, 16>()[plan.shape]
                               : tiled_bitmap::compiled_linear<16, 64>()[plan.shape];
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const auto shared_bytes = static_cast<int>(plan.shared_bytes());
  // More than 48 KB of shared memory must be asked for, once per kernel and device; again is cheap.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  const tiled_bitmap::Cut cut{
      {plan.row_warps, plan.column_warps, tiled_bitmap::kOrders, plan.x_stages},
      static_cast<uint32_t>(plan.scratch_quarters),
      static_cast<uint32_t>(plan.ring_lines * tiled_bitmap::kLineBytes)};
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = plan.blocks;
  config.blockDim = plan.threads();
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = plan.is_early;
  return cudaLaunchKernelEx(&config, kernel, arguments, cut);
}

}  // namespace flashsparse::cuda
