// SPDX-License-Identifier: Apache-2.0
// The first part of a packed weight that breaks a rule, when threads find several.
#pragma once
#include <atomic>
#include <cstdint>

namespace flashsparse::cpu {

// The lowest of the indices that threads report.
class FirstBad {
 public:
  void report(int64_t index) {
    int64_t known = first_.load(std::memory_order_relaxed);
    while (index < known && !first_.compare_exchange_weak(known, index)) {
    }
  }
  bool none() const { return first_.load() == INT64_MAX; }
  int64_t index() const { return first_.load(); }

 private:
  std::atomic<int64_t> first_{INT64_MAX};
};

}  // namespace flashsparse::cpu
