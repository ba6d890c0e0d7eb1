// SPDX-License-Identifier: Apache-2.0
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/launch_early.h"
#include "cuda/tiled_bitmap/linear.h"
#include "cuda/tiled_bitmap/linear_compiled.h"
#include "cuda/tiled_bitmap/linear_shared.h"

namespace flashsparse {
namespace {

using tiled_bitmap::Operands;

template <Operands operands>
const tiled_bitmap::Compiled& compiled_for(const tiled_bitmap::LinearPlan& plan) {
  return plan.info().tokens <= 16 ? tiled_bitmap::compiled_linear<operands, 0, 16>()[plan.shape]
                                  : tiled_bitmap::compiled_linear<operands, 16, 64>()[plan.shape];
}

}  // namespace

namespace cuda {

cudaError_t tiled_bitmap_linear(const tiled_bitmap::Arguments& arguments,
                                const tiled_bitmap::LinearPlan& plan, bool bfloat16,
                                cudaStream_t stream) {
  const tiled_bitmap::Compiled& compiled =
      plan.operands == Operands::kNative  ? compiled_for<Operands::kNative>(plan)
      : plan.operands == Operands::kCodes ? compiled_for<Operands::kCodes>(plan)
                                          : compiled_for<Operands::kRounded>(plan);
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const auto shared_bytes = static_cast<int>(plan.shared_bytes());
  const cudaError_t error = allow_shared(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  const tiled_bitmap::Cut cut{{plan, tiled_bitmap::kOrders, arguments.rows, arguments.cols},
                              static_cast<uint32_t>(plan.scratch_quarters),
                              static_cast<uint32_t>(plan.ring_lines * tiled_bitmap::kLineBytes),
                              plan.is_early == 0};
  return launch_early(kernel, plan.blocks, plan.threads(), shared_bytes, plan.is_early != 0, stream,
                      arguments, cut);
}

}  // namespace cuda
}  // namespace flashsparse
