// SPDX-License-Identifier: Apache-2.0
// Shared by the drivers: they read cases from stdin and write answers to stdout. With a file name
// as argument they also count the cost of memory accesses, and write it to that file.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "emulator/simt.h"

namespace driver {

template <class T>
using DeviceArray = std::unique_ptr<T[], decltype(&std::free)>;

// As from torch's allocator: aligned, but of exactly this size.
template <class T>
DeviceArray<T> device_array(size_t count) {
  void* place = nullptr;
  if (posix_memalign(&place, 64, count * sizeof(T)) != 0) std::abort();
  return {static_cast<T*>(place), &std::free};
}

// Uninitialized memory: NaN in every float type.
template <class T>
DeviceArray<T> unwritten(size_t count) {
  auto array = device_array<T>(count);
  std::memset(array.get(), 0xff, count * sizeof(T));
  return array;
}

template <class T>
void read(T* to, size_t count) {
  if (std::fread(to, sizeof(T), count, stdin) != count) std::abort();
}

template <class T>
DeviceArray<T> read(size_t count) {
  auto array = device_array<T>(count);
  read(array.get(), count);
  return array;
}

// False after the last case.
template <class T, size_t count>
bool read_header(T (&header)[count]) {
  return std::fread(header, sizeof header, 1, stdin) == 1;
}

// Counts until it is destroyed, if a file name was given.
class Counting {
 public:
  Counting(int argc, char** argv) : path_(argc > 1 ? argv[1] : nullptr) {
    simt::statistics.on = path_ != nullptr;
  }
  ~Counting() {
    if (!path_) return;
    std::FILE* const file = std::fopen(path_, "w");
    if (!file) std::abort();
    simt::statistics.write_json(file);
    std::fclose(file);
  }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

 private:
  const char* const path_;
};

template <class T>
void write(const T* from, size_t count) {
  if (std::fwrite(from, sizeof(T), count, stdout) != count) std::abort();
}

}  // namespace driver
