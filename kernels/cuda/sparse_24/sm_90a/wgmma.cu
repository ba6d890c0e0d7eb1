// SPDX-License-Identifier: Apache-2.0
#include "cuda/shared/allow_shared.h"
#include "cuda/shared/tensor_map.h"
#include "cuda/sparse_24/codes.cuh"
#include "cuda/sparse_24/sparse_24.h"
#include "cuda/sparse_24/wgmma_compiled.h"

namespace flashsparse {
namespace {

const sparse_24::WgmmaCompiled* compiled_for(const sparse_24::WgmmaPlan& plan) {
  using namespace sparse_24;
  if (plan.x_bytes == 1) {
    return plan.unit.type == ValueType::kFp8 ? compiled_codes_wgmma<Fp8Codes>()
                                             : compiled_codes_wgmma<Int8Codes>();
  }
  return with_values(plan.unit, [](auto values) { return compiled_wgmma<decltype(values)>(); });
}

}  // namespace

namespace cuda {

cudaError_t sparse_24_wgmma(const mma_units::WgmmaArguments& arguments, const TiledMatrix& x,
                            const sparse_24::WgmmaPlan& plan, bool bfloat16, cudaStream_t stream) {
  const sparse_24::WgmmaCompiled& compiled = compiled_for(plan)[plan.shape];
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
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

}  // namespace cuda
}  // namespace flashsparse
