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
  void begin(size_t dynamic_bytes) {
    constexpr size_t kDynamicAlignment = 1024;
    arrays_.push_back(make({}, dynamic_bytes, kDynamicAlignment));
    stores.begin(dynamic_bytes);
  }

  // Frees the arrays, so that the next block does not find their content.
  void end() {
    for (const Array& array : arrays_) std::free(array.start);
    arrays_.clear();
  }

  void* dynamic() { return arrays_[0].start; }

  // The array that is declared at this place of the kernel: one for all threads of the block.
  void* array(Place place, size_t bytes) {
    constexpr size_t kStaticAlignment = 16;
    for (size_t i = 1; i < arrays_.size(); ++i) {
      if (arrays_[i].place == place) return arrays_[i].start;
    }
    arrays_.push_back(make(place, bytes, kStaticAlignment));
    return arrays_.back().start;
  }

  // A 32-bit address: the offset in dynamic shared memory; static arrays begin at higher multiples
  // of kArraySpan. kNoAddress if `pointer` is not in shared memory.
  uint32_t address(const void* pointer) const {
    const auto place = reinterpret_cast<uintptr_t>(pointer);
    for (size_t i = 0; i < arrays_.size(); ++i) {
      const auto start = reinterpret_cast<uintptr_t>(arrays_[i].start);
      if (start <= place && place <= start + arrays_[i].bytes)
        return static_cast<uint32_t>(i * kArraySpan + (place - start));
    }
    return kNoAddress;
  }

  // Host address of an access of `bytes` bytes; null if it exceeds its array.
  unsigned char* at(uint32_t address, size_t bytes) const {
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

  static Array make(Place place, size_t bytes, size_t alignment) {
    void* start = nullptr;
    if (posix_memalign(&start, alignment, bytes) != 0) std::abort();
    std::memset(start, kPoison, bytes);
    return {place, static_cast<unsigned char*>(start), bytes};
  }

  std::vector<Array> arrays_;  // the dynamic one first
};

// Copies that a thread has started, oldest first, in committed groups and an open one. A copy may
// read and land at any time from its start to the wait for its group. Here it reads at its start,
// when it writes poison, and reads again at the wait, when it writes the data; both in the name of
// the thread.
class AsyncCopies {
 public:
  // `from` is null for zeros; `bytes` is a multiple of 4.
  void start(unsigned char* to, const unsigned char* from, size_t bytes, Place place) {
    for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
      if (from) read(from + i);
      write(to + i, ~uint32_t{0});
    }
    const sanitizers::Unwatched unwatched;
    copies_.push_back({to, from, bytes, place});
  }

  void commit() {
    const sanitizers::Unwatched unwatched;
    group_ends_.push_back(copies_.size());
  }

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
  void take_over(AsyncCopies& other) {
    copies_.insert(copies_.end(), other.copies_.begin(), other.copies_.end());
    other.copies_.clear();
    std::fill(other.group_ends_.begin(), other.group_ends_.end(), 0);
  }

  void land_all() {
    for (size_t copy = 0, landing = count(); copy < landing; ++copy) land(copy);
    const sanitizers::Unwatched unwatched;
    copies_.clear();
  }

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

  // Accesses that neither compiler nor sanitizer may omit.
  static uint32_t read(const unsigned char* place) {
    return *reinterpret_cast<const volatile uint32_t*>(place);
  }
  static void write(unsigned char* place, uint32_t word) {
    *reinterpret_cast<volatile uint32_t*>(place) = word;
  }

  size_t count() const {
    const sanitizers::Unwatched unwatched;
    return copies_.size();
  }

  size_t copies_before(size_t pending) const {
    const sanitizers::Unwatched unwatched;
    return group_ends_.size() > pending ? group_ends_[group_ends_.size() - pending - 1] : 0;
  }

  void land(size_t number) const {
    Copy copy;
    {
      const sanitizers::Unwatched unwatched;
      copy = copies_[number];
    }
    for (size_t i = 0; i < copy.bytes; i += sizeof(uint32_t))
      write(copy.to + i, copy.from ? read(copy.from + i) : 0);
  }

  std::vector<Copy> copies_;
  std::vector<size_t> group_ends_;
};

}  // namespace simt
