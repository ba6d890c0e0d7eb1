// SPDX-License-Identifier: Apache-2.0
// What stands between the products of a layer: norms, rotary embeddings with the write into the
// paged cache, gated activations. Each kernel signals launch_dependents at its first instruction
// and waits before it reads what earlier kernels wrote, so that the product after it loads its
// first weights meanwhile. Pointers are device memory; launchers do not synchronize.
//
// Vectors of 8 elements are read at once: every pointer and stride is a multiple of 8 elements.
// Strides are in elements.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/elementwise/gate_mul_arguments.h"
#include "cuda/elementwise/rms_norm_arguments.h"
#include "cuda/elementwise/rope_cache_arguments.h"

namespace flashsparse::cuda {

// `early`: launches with PDL (cuda/shared/launch_early.h).
cudaError_t rms_norm(const elementwise::RmsNormArguments& arguments, bool bfloat16, bool early,
                     cudaStream_t stream);
cudaError_t rope_cache(const elementwise::RopeCacheArguments& arguments, bool bfloat16, bool early,
                       cudaStream_t stream);
cudaError_t gate_mul(const elementwise::GateMulArguments& arguments, elementwise::Gate gate,
                     bool bfloat16, bool early, cudaStream_t stream);

}  // namespace flashsparse::cuda
