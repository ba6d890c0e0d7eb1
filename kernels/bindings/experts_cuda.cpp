// SPDX-License-Identifier: Apache-2.0
// The op that orders the slots of a batch by expert, on CUDA.
#include <optional>
#include <tuple>

#include "bindings/cuda.h"
#include "bindings/experts.h"
#include "cuda/experts/experts.h"

namespace flashsparse {
namespace {

std::tuple<Tensor, Tensor, Tensor> experts_order(const Tensor& topk_ids, int64_t local_experts,
                                                 int64_t block,
                                                 const std::optional<Tensor>& expert_map) {
  check_on_cuda(topk_ids, "topk_ids");
  check_block_slots(block);
  const experts::Routing routing = routing_of(topk_ids, local_experts, expert_map);
  const torch::stable::accelerator::DeviceGuard guard(topk_ids.get_device_index());
  OrderTensors order(topk_ids, routing, block);
  STD_CUDA_CHECK(cuda::experts_order(routing, order.data(), static_cast<int>(block),
                                     current_stream(topk_ids)));
  return {order.slots, order.experts, order.blocks};
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("experts_order", TORCH_BOX(&experts_order));
}

}  // namespace
}  // namespace flashsparse
