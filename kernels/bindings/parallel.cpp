// SPDX-License-Identifier: Apache-2.0
// parallel_chunks on torch's thread pool: a second pool would compete with it for the cores.
#include "common/parallel.h"

#include <algorithm>
#include <atomic>

#include "bindings/torch_stable.h"

namespace flashsparse {

int num_threads() { return static_cast<int>(torch::stable::get_num_threads()); }

void parallel_chunks(int64_t count, const std::function<void(int64_t)>& body) {
  const int64_t threads = std::min<int64_t>(num_threads(), count);
  if (threads <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
  });
}

}  // namespace flashsparse
