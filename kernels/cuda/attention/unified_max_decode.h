// SPDX-License-Identifier: Apache-2.0
// Launcher of decode attention. Pointers are device memory; it does not synchronize.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/attention/unified_max_arguments.h"
#include "cuda/attention/unified_max_plan.h"

namespace flashsparse::unified_max {

// The kernel over a cache of fp8 codes, or null. It has a source of its own, which is compiled for
// GPUs that widen codes by an instruction, too.
void (*fp8_kernel(const Problem& problem, bool bfloat16))(DecodeArguments);

}  // namespace flashsparse::unified_max

namespace flashsparse::cuda {

// The plan must be for this problem. `early`: whether to use PDL.
cudaError_t unified_max_decode(const unified_max::DecodeArguments& arguments,
                               const unified_max::Problem& problem,
                               const unified_max::DecodePlan& plan, bool bfloat16, bool early,
                               cudaStream_t stream);

}  // namespace flashsparse::cuda
