// SPDX-License-Identifier: Apache-2.0
// Launches with programmatic dependent launch (PDL): the kernel may start before the preceding one
// in the stream has ended. Hopper and later.
#pragma once
#include <cuda_runtime.h>

namespace flashsparse::cuda {

// `early`: whether to use PDL. The kernel then waits by griddepcontrol_wait. The preceding kernel
// must not write what it reads before that wait: its weight.
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
