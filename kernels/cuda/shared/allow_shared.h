// SPDX-License-Identifier: Apache-2.0
// Dynamic shared memory for blocks: more than 48 KB with the static must be asked for.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

namespace flashsparse::cuda {

// Lets blocks of `kernel` have `bytes` of it on the current device. CUDA is asked once for each
// kernel and device, and again for more, and not in each launch: a small layer takes what the host
// takes for its call.
cudaError_t allow_shared(const void* kernel, size_t bytes);

template <class... Parameters>
cudaError_t allow_shared(void (*kernel)(Parameters...), size_t bytes) {
  return allow_shared(reinterpret_cast<const void*>(kernel), bytes);
}

}  // namespace flashsparse::cuda
