// SPDX-License-Identifier: Apache-2.0
// Counts the cost of memory accesses on a GPU, by source line; off unless a driver switches it on.
//   requests    accesses of a warp: one each time that its lanes execute a line
//   wavefronts  of shared memory that they need: 32 banks of 4 bytes; 16-byte accesses take four
//               phases of 8 lanes, 8-byte ones two of 16; lanes that access the same 4-byte word
//               share it, in stores, too
//   sectors     32-byte sectors of global memory that they touch
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "emulator/place.h"

namespace simt {

class Statistics {
 public:
  // (line, operation): how often the thread has executed it. The n-th time of a lane belongs to the
  // same request as the n-th time of the other lanes of its warp.
  using Site = std::pair<Place, const char*>;
  using Counters = std::map<Site, unsigned>;

  struct Access {
    unsigned lane, bytes;
    std::optional<uint32_t> shared;  // address, if it accesses shared memory
    uintptr_t global;                // address, or 0
  };

  struct Count {
    uint64_t requests = 0, wavefronts = 0, sectors = 0;
  };

  bool on = false;
  std::map<Site, Count> counts;

  void add(Counters& counters, const void* block, unsigned warp, Place place, const char* operation,
           const Access& access);
  void end_block(const void* block);

  static unsigned wavefronts(const std::vector<Access>& accesses);
  static unsigned sectors(const std::vector<Access>& accesses);

  // [{"file": "a.cuh", "line": 3, "operation": "ldmatrix", "requests": 1, ...}, ...]
  void write_json(std::FILE* to) const;

 private:
  std::map<std::tuple<const void*, unsigned, Site, unsigned>, std::vector<Access>> requests_;
};

inline Statistics statistics;

}  // namespace simt
