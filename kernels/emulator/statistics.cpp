// SPDX-License-Identifier: Apache-2.0
#include "emulator/statistics.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace simt {

void Statistics::add(Counters& counters, const void* block, unsigned warp, Place place,
                     const char* operation, const Access& access) {
  const Site site{place, operation};
  requests_[{block, warp, site, counters[site]++}].push_back(access);
}

void Statistics::end_block(const void* block) {
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

unsigned Statistics::wavefronts(const std::vector<Access>& accesses) {
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

unsigned Statistics::sectors(const std::vector<Access>& accesses) {
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

void Statistics::write_json(std::FILE* to) const {
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

}  // namespace simt
