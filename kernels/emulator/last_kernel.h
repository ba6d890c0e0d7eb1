// SPDX-License-Identifier: Apache-2.0
// What the kernel before a launch may still use when the launch begins early
// (cuda/shared/launch_early.h). Here that kernel has ended long ago, and so nothing else would show
// that a block did not wait.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace simt {

// `count` elements from `first` on, for as long as this lives: no block may touch them before one
// of its threads has come to wait_for_last_kernel.
class UsedByLastKernel {
 public:
  template <class T>
  UsedByLastKernel(const T* first, size_t count) {
    const auto begin = reinterpret_cast<uintptr_t>(first);
    all.push_back({begin, begin + count * sizeof(T)});
  }
  ~UsedByLastKernel() { all.pop_back(); }
  UsedByLastKernel(const UsedByLastKernel&) = delete;
  UsedByLastKernel& operator=(const UsedByLastKernel&) = delete;

  static bool any(const void* place, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(place);
    return std::any_of(all.begin(), all.end(), [&](const Range& range) {
      return begin < range.end && range.begin < begin + bytes;
    });
  }

 private:
  struct Range {
    uintptr_t begin, end;
  };
  static inline std::vector<Range> all;
};

}  // namespace simt
