// SPDX-License-Identifier: Apache-2.0
// Dynamic shared memory of more than 48 KB, static memory included, has to be requested.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

namespace flashsparse::cuda {

// Lets blocks of `kernel` have `bytes` of dynamic shared memory on the current device. Calls CUDA
// only when a kernel needs more than before on this device, not in each launch: the time of small
// layers is host time.
cudaError_t allow_shared(const void* kernel, size_t bytes);

template <class... Parameters>
cudaError_t allow_shared(void (*kernel)(Parameters...), size_t bytes) {
  return allow_shared(reinterpret_cast<const void*>(kernel), bytes);
}

}  // namespace flashsparse::cuda
