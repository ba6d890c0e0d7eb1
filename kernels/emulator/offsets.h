// SPDX-License-Identifier: Apache-2.0
// The kernel that cuda::sum_offsets launches, in the emulator.
#pragma once
#include <cstdint>

#include "cuda/shared/offsets.cuh"
#include "emulator/driver.h"

namespace driver {

struct SummedOffsets {
  DeviceArray<int32_t> offsets;
  int64_t total;
};

inline SummedOffsets sum_offsets(const int32_t* lengths, int64_t parts, unsigned seed) {
  using namespace flashsparse;
  auto offsets = device_array<int32_t>(parts + 1);
  const auto total = device_array<int64_t>(1);
  const unsigned blocks = static_cast<unsigned>((parts + kBlockLengths - 1) / kBlockLengths);
  simt::launch(blocks, kOffsetThreads, seed,
               [&] { offsets_kernel(lengths, parts, offsets.get(), total.get()); });
  return {std::move(offsets), total[0]};
}

}  // namespace driver
