// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/nm_gather/nm_gather.h"
#include "cuda/nm_gather/packed.cuh"
#include "cuda/shared/allow_shared.h"

namespace flashsparse::cuda {

cudaError_t nm_gather_packed(const nm_gather::Layout& layout, const NmGatherTiles& product,
                             const nm_gather::PackedPlan& plan, int multiprocessors, bool bfloat16,
                             cudaStream_t stream) {
  const nm_gather::Weight weight = nm_gather::weight_of(layout, product.cols, product.weight);
  nm_gather::PackedArguments arguments =
      nm_gather::packed_arguments(layout, product.rows, product.cols, product.tokens, plan);
  arguments.x_tiles = product.x_tiles;
  arguments.bias = product.bias;
  arguments.y = product.y;
  const nm_gather::PackedCompiled& compiled = nm_gather::kPackedCompiled[plan.shape];
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const cudaError_t error = allow_shared(kernel, compiled.shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute{};  // PDL: starts before transpose_x ends
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<uint32_t>(
      std::min<int64_t>(plan.tiles(product.rows, product.tokens), multiprocessors));
  config.blockDim = compiled.threads;
  config.dynamicSmemBytes = compiled.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, weight, arguments);
}

}  // namespace flashsparse::cuda
