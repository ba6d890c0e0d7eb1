// SPDX-License-Identifier: Apache-2.0
// Launches the grouped kernel of sparse_24 (experts.cuh).
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/experts/arguments.h"
#include "cuda/sparse_24/experts_plan.h"

namespace flashsparse::cuda {

// Needs a plan whose broken_rule() is null for this product. `early`: launches with programmatic
// dependent launch; `early_weights`: the preceding kernel writes x and not the order.
cudaError_t sparse_24_experts(const experts::Arguments& arguments,
                              const sparse_24::ExpertsProduct& product,
                              const sparse_24::ExpertsPlan& plan, bool bfloat16, bool early,
                              bool early_weights, cudaStream_t stream);

}  // namespace flashsparse::cuda
