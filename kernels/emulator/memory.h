// SPDX-License-Identifier: Apache-2.0
// Shared memory of one block. Each array is an allocation of its exact size, so that the address
// sanitizer sees an overrun, and starts as 0xff bytes (NaN in every float type, -1 in integers), so
// that a kernel which reads what it never wrote gives a wrong result.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>

#include "emulator/sanitizers.h"

namespace simt {

class SharedMemory {
 public:
  static constexpr size_t kAlignment = 16;

  ~SharedMemory() { clear(); }

  // The array that `line` of the kernel declares: the same one for every thread of the block.
  void* array(int line, size_t bytes) {
    const sanitizers::Unwatched unwatched;
    void*& place = arrays_[line];
    if (!place) {
      if (posix_memalign(&place, kAlignment, bytes) != 0) std::abort();
      std::memset(place, 0xff, bytes);
    }
    return place;
  }

  // Called between blocks: what one leaves behind, the next must not find.
  void clear() {
    const sanitizers::Unwatched unwatched;
    for (auto& [line, place] : arrays_) std::free(place);
    arrays_.clear();
  }

 private:
  std::map<int, void*> arrays_;
};

inline SharedMemory shared_memory;

template <class T>
T* shared_array(int line, size_t count) {
  return static_cast<T*>(shared_memory.array(line, count * sizeof(T)));
}

}  // namespace simt
