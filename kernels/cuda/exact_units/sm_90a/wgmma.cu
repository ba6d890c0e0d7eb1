// SPDX-License-Identifier: Apache-2.0
#include "cuda/exact_units/exact_units.h"
#include "cuda/exact_units/wgmma_compiled.h"
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/tensor_map.h"

namespace flashsparse::cuda {

cudaError_t exact_units_wgmma(const exact_units::WgmmaArguments& arguments, const TiledMatrix& x,
                              const exact_units::WgmmaPlan& plan, cudaStream_t stream) {
  using namespace exact_units;
  const int tokens = plan.info().tokens;
  const WgmmaCompiled* const compiled = tokens == 32   ? compiled_wgmma<32>()
                                        : tokens == 64 ? compiled_wgmma<64>()
                                                       : compiled_wgmma<128>();
  const WgmmaCompiled kernel = compiled[plan.shape];
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
  // PDL: weights are loaded while the preceding kernel, which may write x, comes to its end.
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.blocks());
  config.blockDim = dim3(plan.threads());
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, arguments, map);
}

}  // namespace flashsparse::cuda
