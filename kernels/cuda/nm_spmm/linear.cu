// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_spmm/linear.cuh"
#include "cuda/nm_spmm/nm_spmm.h"
#include "cuda/nm_spmm/transpose.cuh"
#include "cuda/shared/allow_shared.h"

namespace flashsparse::cuda {

cudaError_t nm_spmm_linear(const nm_spmm::Layout& layout, const NmSpmmProduct& product,
                           const nm_spmm::Plan& plan, cudaStream_t stream) {
  const nm_spmm::Weight weight =
      nm_spmm::weight_of(layout, product.cols, product.values,
                         plan.info().packing ? product.packed : product.index, product.columns);
  nm_spmm::Arguments arguments{};
  arguments.xt = product.xt;
  arguments.bias = product.bias;
  arguments.y = product.y;
  arguments.partials = product.partials;
  arguments.arrivals = product.arrivals;
  arguments.rows = static_cast<int>(product.rows);
  arguments.tokens = static_cast<int>(product.tokens);
  nm_spmm::fill(layout, plan, arguments);

  const int64_t columns = layout.panels(product.cols) * layout.columns;
  const int64_t stride = plan.xt_stride(product.tokens);
  constexpr int64_t kTile = nm_spmm::kTransposeTile;
  const dim3 parts(static_cast<uint32_t>(nm_spmm::ceil_div(columns, kTile)),
                   static_cast<uint32_t>(nm_spmm::ceil_div(stride, kTile)));
  nm_spmm::transpose_kernel<<<parts, nm_spmm::kTransposeThreads, 0, stream>>>(
      product.x, product.tokens, product.cols, product.xt, columns, stride);
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;

  const nm_spmm::Kernel kernel = nm_spmm::kCompiled[plan.kernel];
  const int shared = static_cast<int>(plan.shared_bytes(layout));
  error = allow_shared(kernel, shared);
  if (error != cudaSuccess) return error;
  // All of the multiprocessor's carveout, so that it holds several blocks: they do not use the L1.
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  const dim3 blocks(static_cast<uint32_t>(plan.tiles(product.rows, product.tokens)), plan.splits);
  kernel<<<blocks, plan.info().threads(), shared, stream>>>(weight, arguments);
  return cudaGetLastError();
}

}  // namespace flashsparse::cuda
