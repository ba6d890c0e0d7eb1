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
           const Access& access) {
    const Site site{place, operation};
    requests_[{block, warp, site, counters[site]++}].push_back(access);
  }

  void end_block(const void* block) {
    for (auto request = requests_.begin(); request != requests_.end();) {
      if (std::get<0>(request->first) != block) {
        ++request;
        continue;
      }
      Count& count = counts[std::get<2>(request->first)];
      ++count.requests;
      count.wavefronts += wavefronts(request->second);
      count.sectors += sectors(request->second);
      request = requests_.erase(request);
    }
  }

  static unsigned wavefronts(const std::vector<Access>& accesses) {
    constexpr unsigned kBanks = 32, kWordBytes = 4, kWarpSize = 32, kWavefrontBytes = 128;
    unsigned total = 0;
    const unsigned lanes = std::min(kWarpSize, kWavefrontBytes / accesses[0].bytes);  // of a phase
    for (unsigned first = 0; first < kWarpSize; first += lanes) {
      std::array<std::vector<uint32_t>, kBanks> words;
      for (const Access& access : accesses) {
        if (!access.shared || access.lane < first || access.lane >= first + lanes) continue;
        const uint32_t end = *access.shared + access.bytes;
        for (uint32_t word = *access.shared / kWordBytes; word * kWordBytes < end; ++word) {
          std::vector<uint32_t>& bank = words[word % kBanks];
          if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
        }
      }
      size_t most = 0;
      for (const auto& bank : words) most = std::max(most, bank.size());
      total += most;
    }
    return total;
  }

  static unsigned sectors(const std::vector<Access>& accesses) {
    constexpr uint64_t kSectorBytes = 32;
    std::vector<uint64_t> touched;
    for (const Access& access : accesses) {
      if (!access.global) continue;
      const uint64_t end = access.global + access.bytes;
      for (uint64_t sector = access.global / kSectorBytes; sector * kSectorBytes < end; ++sector)
        touched.push_back(sector);
    }
    std::sort(touched.begin(), touched.end());
    return std::unique(touched.begin(), touched.end()) - touched.begin();
  }

  // [{"file": "a.cuh", "line": 3, "operation": "ldmatrix", "requests": 1, ...}, ...]
  void write_json(std::FILE* to) const {
    const char* separator = "[";
    for (const auto& [site, count] : counts) {
      std::fprintf(to,
                   "%s\n  {\"file\": \"%s\", \"line\": %d, \"operation\": \"%s\", "
                   "\"requests\": %llu, \"wavefronts\": %llu, \"sectors\": %llu}",
                   separator, site.first.file_name(), site.first.line, site.second,
                   static_cast<unsigned long long>(count.requests),
                   static_cast<unsigned long long>(count.wavefronts),
                   static_cast<unsigned long long>(count.sectors));
      separator = ",";
    }
    std::fprintf(to, "%s]\n", counts.empty() ? "[" : "\n");
  }

 private:
  std::map<std::tuple<const void*, unsigned, Site, unsigned>, std::vector<Access>> requests_;
};

inline Statistics statistics;

}  // namespace simt
