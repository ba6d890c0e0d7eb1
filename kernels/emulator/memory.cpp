// SPDX-License-Identifier: Apache-2.0
#include "emulator/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace simt {

void SharedMemory::begin(size_t dynamic_bytes) {
  constexpr size_t kDynamicAlignment = 1024;
  arrays_.push_back(make({}, dynamic_bytes, kDynamicAlignment));
  stores.begin(dynamic_bytes);
}

void SharedMemory::end() {
  for (const Array& array : arrays_) std::free(array.start);
  arrays_.clear();
}

void* SharedMemory::array(Place place, size_t bytes) {
  constexpr size_t kStaticAlignment = 16;
  for (size_t i = 1; i < arrays_.size(); ++i) {
    if (arrays_[i].place == place) return arrays_[i].start;
  }
  arrays_.push_back(make(place, bytes, kStaticAlignment));
  return arrays_.back().start;
}

uint32_t SharedMemory::address(const void* pointer) const {
  const auto place = reinterpret_cast<uintptr_t>(pointer);
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const auto start = reinterpret_cast<uintptr_t>(arrays_[i].start);
    if (start <= place && place <= start + arrays_[i].bytes)
      return static_cast<uint32_t>(i * kArraySpan + (place - start));
  }
  return kNoAddress;
}

SharedMemory::Array SharedMemory::make(Place place, size_t bytes, size_t alignment) {
  void* start = nullptr;
  if (posix_memalign(&start, alignment, bytes) != 0) std::abort();
  std::memset(start, kPoison, bytes);
  return {place, static_cast<unsigned char*>(start), bytes};
}

namespace {

// Accesses that neither compiler nor sanitizer may omit.
uint32_t read(const unsigned char* place) {
  return *reinterpret_cast<const volatile uint32_t*>(place);
}
void write(unsigned char* place, uint32_t word) {
  *reinterpret_cast<volatile uint32_t*>(place) = word;
}

}  // namespace

void AsyncCopies::start(unsigned char* to, const unsigned char* from, size_t bytes, Place place) {
  for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
    if (from) read(from + i);
    write(to + i, ~uint32_t{0});
  }
  const sanitizers::Unwatched unwatched;
  copies_.push_back({to, from, bytes, place});
}

void AsyncCopies::commit() {
  const sanitizers::Unwatched unwatched;
  group_ends_.push_back(copies_.size());
}

void AsyncCopies::take_over(AsyncCopies& other) {
  copies_.insert(copies_.end(), other.copies_.begin(), other.copies_.end());
  other.copies_.clear();
  std::fill(other.group_ends_.begin(), other.group_ends_.end(), 0);
}

void AsyncCopies::land_all() {
  for (size_t copy = 0, landing = count(); copy < landing; ++copy) land(copy);
  const sanitizers::Unwatched unwatched;
  copies_.clear();
}

size_t AsyncCopies::count() const {
  const sanitizers::Unwatched unwatched;
  return copies_.size();
}

size_t AsyncCopies::copies_before(size_t pending) const {
  const sanitizers::Unwatched unwatched;
  return group_ends_.size() > pending ? group_ends_[group_ends_.size() - pending - 1] : 0;
}

void AsyncCopies::land(size_t number) const {
  Copy copy;
  {
    const sanitizers::Unwatched unwatched;
    copy = copies_[number];
  }
  for (size_t i = 0; i < copy.bytes; i += sizeof(uint32_t))
    write(copy.to + i, copy.from ? read(copy.from + i) : 0);
}

}  // namespace simt
