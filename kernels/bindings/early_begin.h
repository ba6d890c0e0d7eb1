// SPDX-License-Identifier: Apache-2.0
// When to launch a product with programmatic dependent launch (PDL).
//
// The result is right whatever the preceding kernel is: before it waits for that kernel, a product
// reads only its weight, which no kernel in a stream of products writes, and writes only shared
// memory. Only its time depends on it: after a kernel that signals launch_dependents a launch gains
// two microseconds and more, after any other it loses 0.2 (measured on an H200).
#pragma once
#include <atomic>
#include <utility>

#include "bindings/torch_stable.h"

namespace flashsparse {

// Whether kernels of others signal launch_dependents, too: set for the process by the op
// begin_early.
inline std::atomic<bool> others_let_begin{false};

namespace detail {
// x of the last product of this thread, or what its last kernel that signals launch_dependents and
// is no product wrote, if no product came since.
inline thread_local const void* last_x = nullptr;
}  // namespace detail

// Call after a launch that writes y and signals launch_dependents at its first instruction: a
// product of y is likely to be the next kernel. (Were it not, the product would lose 0.2 us.)
inline void lets_begin(const Tensor& y) { detail::last_x = y.const_data_ptr(); }

// Whether to launch a product of x with PDL: always if others signal, or else if the last product
// of this thread read the same x, like q, k and v, since nothing is likely to run between them, or
// if a kernel of ours that signals wrote x.
inline bool begins_early(const Tensor& x) {
  const void* const now = x.const_data_ptr();
  const bool follows_one_of_ours = std::exchange(detail::last_x, now) == now;
  return follows_one_of_ours || others_let_begin.load(std::memory_order_relaxed);
}

}  // namespace flashsparse
