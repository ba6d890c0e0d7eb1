// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of mixtures of experts, in any format and on every device. Ids of
// experts are not checked: a slot whose id names no local expert is left out.
#pragma once
#include <optional>
#include <string>

#include "bindings/packed.h"
#include "bindings/torch_stable.h"
#include "cuda/experts/routing.h"

namespace flashsparse {

// topk_ids [tokens, top_k] and expert_map [known experts] or nothing.
inline experts::Routing routing_of(const Tensor& topk_ids, int64_t local_experts,
                                   const std::optional<Tensor>& expert_map) {
  FS_CHECK(local_experts >= 1 && local_experts <= experts::kMostExperts,
           "a layer has between 1 and ", int64_t{experts::kMostExperts}, " experts, not ",
           local_experts);
  FS_CHECK(topk_ids.scalar_type() == ScalarType::Int || topk_ids.scalar_type() == ScalarType::Long,
           "topk_ids must be int32 or int64");
  check_tensor(topk_ids, "topk_ids", topk_ids.scalar_type(), 2);
  FS_CHECK(topk_ids.size(1) >= 1, "topk_ids must be [tokens, top_k], with an expert at least");
  constexpr int64_t kMostSlots = 1 << 28;
  FS_CHECK(topk_ids.numel() <= kMostSlots, "there are too many tokens: ", topk_ids.size(0),
           " with ", topk_ids.size(1), " experts each. Remedy: pass fewer at a time");
  int64_t known = local_experts;
  if (expert_map) {
    check_tensor(*expert_map, "expert_map", ScalarType::Int, 1);
    check_beside(*expert_map, "expert_map", topk_ids, "topk_ids");
    known = expert_map->size(0);
    FS_CHECK(known <= kMostSlots, "expert_map is too long");
  }
  return {static_cast<const int32_t*>(topk_ids.const_data_ptr()),
          topk_ids.scalar_type() == ScalarType::Long ? 2 : 1,
          expert_map ? expert_map->const_data_ptr<int32_t>() : nullptr,
          static_cast<int>(topk_ids.numel()),
          static_cast<int>(known),
          static_cast<int>(local_experts)};
}

// The tensors of an order of blocks of `block_slots` slots.
struct OrderTensors {
  Tensor slots, experts, blocks, spans;

  OrderTensors(const Tensor& topk_ids, const experts::Routing& routing, int64_t block_slots)
      : slots(allocate_like(topk_ids,
                            {experts::most_slots(routing.slots, routing.experts, block_slots)},
                            ScalarType::Int)),
        experts(allocate_like(topk_ids,
                              {experts::most_blocks(routing.slots, routing.experts, block_slots)},
                              ScalarType::Int)),
        blocks(allocate_like(topk_ids, {1}, ScalarType::Int)),
        spans(allocate_like(topk_ids, {experts.size(0), 2}, ScalarType::Int)) {}

  experts::Order data() {
    return {slots.mutable_data_ptr<int32_t>(), experts.mutable_data_ptr<int32_t>(),
            blocks.mutable_data_ptr<int32_t>(), spans.mutable_data_ptr<int32_t>()};
  }
};

inline void check_block_slots(int64_t block) {
  FS_CHECK(block >= 1 && block <= 1024, "a block has between 1 and 1024 slots, not ", block);
}

}  // namespace flashsparse
