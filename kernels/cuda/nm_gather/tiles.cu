// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/nm_gather/nm_gather.h"
#include "cuda/nm_gather/tiles.cuh"
#include "cuda/shared/allow_shared.h"

namespace flashsparse::nm_gather {

template CompiledTiles compiled_tiles<ValueType::kNative>(int shape);

}  // namespace flashsparse::nm_gather

namespace flashsparse::cuda {

namespace {

// The number of blocks that run at once, for a launch without clusters. Queried once for each
// kernel, launch configuration and device.
cudaError_t blocks_at_once(const void* kernel, const cudaLaunchConfig_t& config, int* blocks) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, size_t, unsigned, int>, int> found;
  int device = 0, multiprocessors = 0, count = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const std::lock_guard<std::mutex> lock(mutex);
  int& known = found[{kernel, config.dynamicSmemBytes, config.blockDim.x, device}];
  if (known == 0) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &count, kernel, static_cast<int>(config.blockDim.x), config.dynamicSmemBytes);
    if (error != cudaSuccess) return error;
    if (count == 0) return cudaErrorInvalidConfiguration;
    known = count * multiprocessors;
  }
  *blocks = known;
  return cudaSuccess;
}

}  // namespace

cudaError_t nm_gather_tiles(const nm_gather::Layout& layout, const NmGatherTiles& product,
                            const nm_gather::TilesPlan& plan, bool bfloat16, bool hopper,
                            cudaStream_t stream) {
  const nm_gather::Weight weight = nm_gather::weight_of(layout, product.cols, product.weight);
  nm_gather::TileArguments arguments{};
  arguments.x_tiles = product.x_tiles;
  arguments.x_scales = product.x_scales;
  arguments.bias = product.bias;
  arguments.y = product.y;
  arguments.partials = product.partials;
  arguments.arrivals = product.arrivals;
  nm_gather::fill(layout, product.rows, product.cols, product.tokens, plan, arguments);
  const nm_gather::CompiledTiles compiled =
      nm_gather::compiled_tiles(plan.shape, layout.value_type);
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const int shared = static_cast<int>(plan.shared_bytes(layout));
  cudaError_t error = allow_shared(kernel, shared);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<uint32_t>(plan.blocks(product.rows, product.tokens));
  config.blockDim = plan.threads();
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  if (plan.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = plan.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  if (plan.splits == 1) {
    int at_once = 0;
    error = blocks_at_once(reinterpret_cast<const void*>(kernel), config, &at_once);
    if (error != cudaSuccess) return error;
    config.gridDim.x = std::min<uint32_t>(config.gridDim.x, at_once);
  }
  if (hopper) {  // PDL: starts before transpose_x ends
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, weight, arguments);
}

}  // namespace flashsparse::cuda
