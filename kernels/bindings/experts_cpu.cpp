// SPDX-License-Identifier: Apache-2.0
// The schema of the op that orders the slots of a batch by expert, and its implementation on a CPU.
#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/experts.h"
#include "bindings/torch_stable.h"

namespace flashsparse {
namespace {

std::tuple<Tensor, Tensor, Tensor> experts_order(const Tensor& topk_ids, int64_t local_experts,
                                                 int64_t block,
                                                 const std::optional<Tensor>& expert_map) {
  check_on_cpu(topk_ids, "topk_ids");
  check_block_slots(block);
  const experts::Routing routing = routing_of(topk_ids, local_experts, expert_map);
  OrderTensors tensors(topk_ids, routing, block);
  const experts::Order order = tensors.data();
  std::vector<std::vector<int32_t>> slots(local_experts);
  for (int slot = 0; slot < routing.slots; ++slot) {
    const int expert = routing.expert_of(slot);
    if (expert >= 0) slots[expert].push_back(slot);
  }
  std::fill_n(order.slots, tensors.slots.numel(), routing.slots);
  std::fill_n(order.experts, tensors.experts.numel(), -1);
  int32_t blocks = 0;
  for (int expert = 0; expert < local_experts; ++expert) {
    const std::vector<int32_t>& own = slots[expert];
    std::copy(own.begin(), own.end(), order.slots + blocks * block);
    const auto more = static_cast<int32_t>((static_cast<int64_t>(own.size()) + block - 1) / block);
    std::fill_n(order.experts + blocks, more, expert);
    blocks += more;
  }
  order.blocks[0] = blocks;
  return {tensors.slots, tensors.experts, tensors.blocks};
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def(
      "experts_order(Tensor topk_ids, int experts, int block, Tensor? expert_map=None) "
      "-> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CPU, m) {
  m.impl("experts_order", TORCH_BOX(&experts_order));
}

}  // namespace
}  // namespace flashsparse
