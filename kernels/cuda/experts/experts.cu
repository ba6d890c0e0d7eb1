// SPDX-License-Identifier: Apache-2.0
#include "cuda/experts/experts.h"
#include "cuda/experts/gather.cuh"
#include "cuda/experts/order.cuh"
#include "cuda/experts/sum.cuh"
#include "cuda/shared/launch_early.h"

namespace flashsparse::cuda {

cudaError_t experts_order(const experts::Routing& routing, const experts::Order& order,
                          int block_slots, cudaStream_t stream) {
  const auto most_slots =
      static_cast<int>(experts::most_slots(routing.slots, routing.experts, block_slots));
  const auto most_blocks =
      static_cast<int>(experts::most_blocks(routing.slots, routing.experts, block_slots));
  experts::order_kernel<<<1, experts::order_threads(routing.experts), 0, stream>>>(
      routing, order, block_slots, most_slots, most_blocks);
  return cudaGetLastError();
}

cudaError_t experts_gather(const experts::Gather& gather, int most_slots, bool early,
                           cudaStream_t stream) {
  return launch_early(experts::gather_kernel, experts::gather_blocks(most_slots),
                      experts::kGatherThreads, 0, early, stream, gather, most_slots);
}

cudaError_t experts_sum(const experts::Routing& routing, int top_k, const int32_t* places,
                        const uint16_t* products, int stride, int columns, uint16_t* y,
                        bool bfloat16, bool early, cudaStream_t stream) {
  const auto kernel =
      places
          ? (bfloat16 ? experts::sum_kernel<BFloat16, true> : experts::sum_kernel<Float16, true>)
          : (bfloat16 ? experts::sum_kernel<BFloat16, false> : experts::sum_kernel<Float16, false>);
  const dim3 blocks(routing.slots / top_k, experts::sum_blocks(columns));
  return launch_early(kernel, blocks, experts::kSumThreads, 0, early, stream, routing, top_k,
                      places, products, stride, columns, y);
}

}  // namespace flashsparse::cuda
