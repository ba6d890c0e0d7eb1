// SPDX-License-Identifier: Apache-2.0
// Shared memory of a block, and a thread's asynchronous copies into it. Each array is an allocation
// of its exact size, so that the address sanitizer detects an overrun, and is filled with 0xff
// bytes (NaN in every float type, -1 in integers), so that a kernel that reads what it never wrote
// gives a wrong result.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "emulator/place.h"
#include "emulator/products.h"
#include "emulator/sanitizers.h"

namespace simt {

inline constexpr unsigned char kPoison = 0xff;

class SharedMemory {
 public:
  void begin(size_t dynamic_bytes);
  // Frees the arrays, so that the next block does not find their content.
  void end();

  void* dynamic() { return arrays_[0].start; }

  // The array that is declared at this place of the kernel: one for all threads of the block.
  void* array(Place place, size_t bytes);

  // A 32-bit address: the offset in dynamic shared memory; static arrays begin at higher multiples
  // of kArraySpan. kNoAddress if `pointer` is not in shared memory.
  uint32_t address(const void* pointer) const;

  // Host address of an access of `bytes` bytes; null if it exceeds its array.
  SIMT_UNWATCHED unsigned char* at(uint32_t address, size_t bytes) const {
    const size_t number = address / kArraySpan, offset = address % kArraySpan;
    if (number >= arrays_.size() || offset + bytes > arrays_[number].bytes) return nullptr;
    return arrays_[number].start + offset;
  }

  static constexpr uint32_t kNoAddress = ~uint32_t{0};

  Stores stores;

 private:
  static constexpr uint32_t kArraySpan = 1 << 20;  // more than a multiprocessor has

  struct Array {
    Place place;
    unsigned char* start;
    size_t bytes;
  };

  static Array make(Place place, size_t bytes, size_t alignment);

  std::vector<Array> arrays_;  // the dynamic one first
};

// Copies that a thread has started, oldest first, in committed groups and an open one. A copy may
// read and land at any time from its start to the wait for its group. Here it reads at its start,
// when it writes poison, and reads again at the wait, when it writes the data; both in the name of
// the thread.
class AsyncCopies {
 public:
  // `from` is null for zeros; `bytes` is a multiple of 4.
  void start(unsigned char* to, const unsigned char* from, size_t bytes, Place place);

  void commit();

  // Lands all groups except the latest `pending`, and calls landed(to, bytes, place) for each copy.
  template <class Landed>
  void wait(size_t pending, Landed landed) {
    const size_t landing = copies_before(pending);
    for (size_t copy = 0; copy < landing; ++copy) land(copy);
    const sanitizers::Unwatched unwatched;
    for (size_t copy = 0; copy < landing; ++copy)
      landed(copies_[copy].to, copies_[copy].bytes, copies_[copy].place);
    copies_.erase(copies_.begin(), copies_.begin() + landing);
    if (group_ends_.size() > pending)
      group_ends_.erase(group_ends_.begin(), group_ends_.end() - pending);
    for (size_t& end : group_ends_) end -= landing;
  }

  // Takes the copies of another thread, to land them when an mbarrier is waited for.
  void take_over(AsyncCopies& other);

  void land_all();

  // Whether a copy may still land; empty groups do not count.
  bool in_flight() const { return !copies_.empty(); }

  void forget_groups() { group_ends_.clear(); }

 private:
  struct Copy {
    unsigned char* to;
    const unsigned char* from;
    size_t bytes;
    Place place;
  };

  size_t count() const;
  size_t copies_before(size_t pending) const;
  void land(size_t number) const;

  std::vector<Copy> copies_;
  std::vector<size_t> group_ends_;
};

}  // namespace simt
