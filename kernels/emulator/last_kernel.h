// SPDX-License-Identifier: Apache-2.0
// The kernel before a launch that uses PDL (cuda/shared/launch_early.h). It runs beside that launch
// and ends as late as it can: when every resident thread has ended or waits, and some wait for it.
// Only then it writes. So whatever a thread reads before its griddepcontrol_wait is wrong, and
// whatever it writes before is lost.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

namespace simt {

// Marks `count` elements from `first` on, while it exists, as what the preceding kernel writes:
// they hold 0xff bytes until it ends, and what they held before from then on. No block may access
// them before one of its threads has returned from griddepcontrol_wait; accesses by primitives are
// errors, others see the wrong bytes.
class UsedByLastKernel {
 public:
  template <class T>
  UsedByLastKernel(const T* first, size_t count)
      : bytes_(reinterpret_cast<unsigned char*>(const_cast<std::remove_const_t<T>*>(first))),
        written_(bytes_, bytes_ + count * sizeof(T)) {
    if (count) std::memset(bytes_, 0xff, written_.size());
    all.push_back(this);
  }
  ~UsedByLastKernel() { all.pop_back(); }
  UsedByLastKernel(const UsedByLastKernel&) = delete;
  UsedByLastKernel& operator=(const UsedByLastKernel&) = delete;

  static bool any(const void* place, size_t bytes) {
    const auto* const begin = static_cast<const unsigned char*>(place);
    return std::any_of(all.begin(), all.end(), [&](const UsedByLastKernel* used) {
      return begin < used->bytes_ + used->size_ && used->bytes_ < begin + bytes;
    });
  }

  static bool running() {
    return std::any_of(all.begin(), all.end(),
                       [](const UsedByLastKernel* used) { return used->is_running_; });
  }

  static void end() {
    for (UsedByLastKernel* const used : all) {
      if (!used->is_running_) continue;
      if (used->size_) std::memcpy(used->bytes_, used->written_.data(), used->size_);
      used->is_running_ = false;
    }
  }

 private:
  static inline std::vector<UsedByLastKernel*> all;

  unsigned char* const bytes_;
  const std::vector<unsigned char> written_;
  const size_t size_ = written_.size();
  bool is_running_ = true;
};

// With the environment variable WITHOUT_WAIT griddepcontrol_wait does nothing: a mutant of every
// kernel, without another program.
inline const bool without_wait = std::getenv("WITHOUT_WAIT") != nullptr;

}  // namespace simt
