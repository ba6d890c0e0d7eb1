// SPDX-License-Identifier: Apache-2.0
// Launchers of what all layers of experts need around their products. Pointers are device memory;
// nothing here synchronizes.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/experts/gather.h"
#include "cuda/experts/routing.h"

namespace flashsparse::cuda {

// Orders slots by expert, in blocks of `block_slots` (order.cuh).
cudaError_t experts_order(const experts::Routing& routing, const experts::Order& order,
                          int block_slots, cudaStream_t stream);

// Puts the rows of x into the order of slots (gather.cuh). `early`: launches with PDL.
cudaError_t experts_gather(const experts::Gather& gather, int most_slots, bool early,
                           cudaStream_t stream);

// y [tokens, columns]: adds up the products of the slots of each token, which are at their places
// unless `places` is null (sum.cuh). `early`: launches with PDL.
cudaError_t experts_sum(const experts::Routing& routing, int top_k, const int32_t* places,
                        const uint16_t* products, int stride, int columns, uint16_t* y,
                        bool bfloat16, bool early, cudaStream_t stream);

}  // namespace flashsparse::cuda
