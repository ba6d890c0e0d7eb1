// SPDX-License-Identifier: Apache-2.0
#include "common/mma.cuh"
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/tensor_map.h"
#include "cuda/tiled_bitmap/wgmma.h"
#include "cuda/tiled_bitmap/wgmma_dispatch.h"

namespace flashsparse::cuda {

cudaError_t tiled_bitmap_wgmma(const tiled_bitmap::WgmmaArguments& arguments, const TiledMatrix& x,
                               const tiled_bitmap::WgmmaPlan& plan, tiled_bitmap::Operands operands,
                               bool bfloat16, cudaStream_t stream) {
  using tiled_bitmap::compiled_wgmma;
  using tiled_bitmap::WgmmaKernel;
  const WgmmaKernel kernel = compiled_wgmma(operands, bfloat16)[plan.shape];
  const auto shared_bytes = static_cast<int>(plan.shared_bytes());
  TensorMap map;
  cudaError_t error = make_tensor_map(x, &map);
  if (error != cudaSuccess) return error;
  error = allow_shared(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(plan.cluster());
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.blocks());
  config.blockDim = dim3(plan.threads());
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments, map);
}

}  // namespace flashsparse::cuda
