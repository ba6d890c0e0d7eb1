// SPDX-License-Identifier: Apache-2.0
// Launches a stream-K kernel, of any format.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/shared/allow_shared.h"
#include "cuda/tiled_csl/linear_kernel.cuh"

namespace flashsparse::linear {

template <class Weight>
cudaError_t launch(const Compiled<Weight>& compiled, bool bfloat16, const Weight& weight,
                   const Arguments& arguments, int blocks, cudaStream_t stream) {
  const auto kernel = bfloat16 ? compiled.bfloat16 : compiled.float16;
  const cudaError_t error = cuda::allow_shared(kernel, compiled.shared_bytes);
  if (error != cudaSuccess) return error;
  kernel<<<blocks, compiled.threads, compiled.shared_bytes, stream>>>(weight, arguments);
  return cudaGetLastError();
}

}  // namespace flashsparse::linear
