// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/sparse_24.h"
#include "cuda/sparse_24/wgmma.cuh"
#include "cuda/tensor_map.h"

namespace flashsparse::cuda {

cudaError_t sparse_24_wgmma(const sparse_24::WgmmaArguments& arguments, const TiledMatrix& x,
                            const sparse_24::WgmmaPlan& plan, bool bfloat16, cudaStream_t stream) {
  const sparse_24::WgmmaCompiled& compiled = sparse_24::kCompiledWgmma[plan.shape];
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const auto shared_bytes = static_cast<int>(plan.shared_bytes());
  TensorMap map;
  cudaError_t error = make_tensor_map(x, &map);
  if (error != cudaSuccess) return error;
  // More than 48 KB of shared memory must be asked for, once per kernel and device; again is cheap.
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
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
