// SPDX-License-Identifier: Apache-2.0
// Launches that may begin before the kernel before in the stream has ended (programmatic dependent
// launch, on Hopper).
#pragma once
#include <cuda_runtime.h>

namespace flashsparse::cuda {

// `early`: whether it may. The kernel waits for the one before by wait_for_last_kernel. What it
// reads earlier, its weight, the one before must not write.
template <class... Parameters, class... Arguments>
cudaError_t launch_early(void (*kernel)(Parameters...), dim3 blocks, int threads, int shared_bytes,
                         bool early, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace flashsparse::cuda
