// SPDX-License-Identifier: Apache-2.0
// What the preceding kernel may still use when a launch uses PDL (cuda/shared/launch_early.h). In
// the emulator that kernel has ended, so nothing else would show that a block did not wait.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace simt {

// Marks `count` elements from `first` on while it exists: no block may access them before one of
// its threads has called griddepcontrol_wait.
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
