// SPDX-License-Identifier: Apache-2.0
// What plans know of a GPU.
#pragma once
#include <cstdint>

namespace flashsparse {

struct Gpu {
  int multiprocessors;
  int64_t shared_bytes;  // of shared memory, that one block may have
  bool hopper = false;   // compute capability 9.0, which has wgmma
  int fma_units = 128;   // of a multiprocessor, for float32
  bool fp8_mma = false;  // compute capability 8.9 and 12, where mma multiplies codes of e4m3
  double memory = 0;     // bytes a microsecond by its clock and width, 0 where they are not known

  // Blocks with `bytes` of shared memory that a multiprocessor holds: it has little more than one
  // block may have, and keeps 1 KB for each.
  int64_t blocks_by_shared(int64_t bytes) const {
    constexpr int64_t kReserved = 1024;
    return (shared_bytes + kReserved) / (bytes + kReserved);
  }
};

}  // namespace flashsparse
