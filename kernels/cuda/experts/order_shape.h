// SPDX-License-Identifier: Apache-2.0
// The launch of the kernel that orders slots by expert (order.cuh).
#pragma once
#include <algorithm>

#include "cuda/experts/routing.h"

namespace flashsparse::experts {

inline constexpr int kOrderCounters = 8192;  // counters of warps and experts, in shared memory
inline constexpr int kOrderThreads = 1024;   // at most

// As many warps as there are counters for.
constexpr int order_threads(int experts) {
  return std::min(kOrderThreads / 32, kOrderCounters / experts) * 32;
}
static_assert(order_threads(kMostExperts) >= 32);

}  // namespace flashsparse::experts
