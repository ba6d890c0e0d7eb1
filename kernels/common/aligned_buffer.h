// SPDX-License-Identifier: Apache-2.0
// Scratch memory on cache-line boundaries.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace flashsparse {

// Uninitialised memory that grows on demand and is reused. One per thread (thread_local) for
// scratch inside a chunk, so that concurrent callers never share one.
class AlignedBuffer {
 public:
  template <typename T>
  T* get(size_t count) {
    constexpr size_t kAlignment = 64;
    const size_t bytes = (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(std::aligned_alloc(kAlignment, bytes));
      if (!data_) throw std::bad_alloc();
      size_ = bytes;
    }
    return static_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<void, Free> data_;
  size_t size_ = 0;
};

}  // namespace flashsparse
