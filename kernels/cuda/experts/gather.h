// SPDX-License-Identifier: Apache-2.0
// The launch of the kernel that puts x into the order of slots (gather.cuh).
#pragma once
#include <cstdint>

#include "cuda/experts/routing.h"
#include "cuda/shared/divider.h"

namespace flashsparse::experts {

// Device memory.
struct Gather {
  Order order;
  const uint16_t* x;  // [tokens, stride], 16-byte aligned; stride is a multiple of 8
  int stride, slots;
  Divider by_top_k;
  const float* weights;  // of slots
  // Of places; padding is not written.
  uint16_t* rows;        // [most_slots, stride], 16-byte aligned
  float* place_weights;  // [most_slots]
  int32_t* places;       // [slots]: the place of each that has a local expert
};

inline constexpr int kGatherThreads = 256;

constexpr int gather_blocks(int64_t most_slots) {
  return static_cast<int>((most_slots * 32 + kGatherThreads - 1) / kGatherThreads);
}

}  // namespace flashsparse::experts
