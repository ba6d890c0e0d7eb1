// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_gather/linear.cuh"
#include "cuda/nm_gather/nm_gather.h"
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/launch_early.h"

namespace flashsparse::nm_gather {

template Compiled compiled<ValueType::kNative>(int shape);

}  // namespace flashsparse::nm_gather

namespace flashsparse::cuda {

cudaError_t nm_gather_linear(const nm_gather::Layout& layout, const NmGatherProduct& product,
                             const nm_gather::Plan& plan, bool bfloat16, bool early,
                             cudaStream_t stream) {
  const nm_gather::Weight weight = nm_gather::weight_of(layout, product.cols, product.weight);
  nm_gather::Arguments arguments{};
  arguments.x = product.x;
  arguments.x_stride = product.x_stride;
  arguments.x_scales = product.x_scales;
  arguments.bias = product.bias;
  arguments.y = product.y;
  arguments.partials = product.partials;
  arguments.arrivals = product.arrivals;
  arguments.tokens = product.tokens;
  nm_gather::fill(layout, product.rows, product.cols, plan, arguments);
  const nm_gather::Compiled compiled = nm_gather::compiled(plan.shape, layout.value_type);
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const int shared = static_cast<int>(plan.shared_bytes(layout, product.cols));
  const cudaError_t error = allow_shared(kernel, shared);
  if (error != cudaSuccess) return error;
  const dim3 blocks(static_cast<uint32_t>(plan.row_blocks(layout, product.rows)), plan.splits);
  return launch_early(kernel, blocks, plan.threads(), shared, early, stream, weight, arguments);
}

}  // namespace flashsparse::cuda
