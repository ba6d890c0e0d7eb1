// SPDX-License-Identifier: Apache-2.0
// Launches the wgmma kernels: clusters of thread blocks, and a tensor map for x.
#pragma once
#include <cuda_runtime.h>

#include "common/tensor_map.h"
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/tensor_map.h"

namespace flashsparse::cuda {

// Launches a kernel with a plan that breaks no rule. `early`: whether to use PDL, so that weights
// are loaded while the preceding kernel, which may write x, comes to its end (launch_early.h has
// the rules).
template <class Arguments, class Plan>
cudaError_t launch_wgmma(void (*kernel)(Arguments, TensorMap), const Arguments& arguments,
                         const TiledMatrix& x, const Plan& plan, bool early, cudaStream_t stream) {
  const auto shared_bytes = static_cast<int>(plan.shared_bytes());
  TensorMap map;
  cudaError_t error = make_tensor_map(x, &map);
  if (error != cudaSuccess) return error;
  error = allow_shared(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(plan.cluster());
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.blocks());
  config.blockDim = dim3(plan.threads());
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = early ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, arguments, map);
}

}  // namespace flashsparse::cuda
