// SPDX-License-Identifier: Apache-2.0
// What a copy of tiles out of a matrix in global memory must know of it: CUtensorMap of the driver,
// which the host makes (cuda/shared/tensor_map.h) and a kernel takes as a parameter. The emulator's
// says the same in its own words.
#pragma once
#include <cstdint>

namespace flashsparse {

struct alignas(64) TensorMap {
  uint64_t words[16];
};

// A matrix of 16-bit elements, and the tiles that are copied out of it: 64 columns wide.
struct TiledMatrix {
  const uint16_t* data;  // on 16 bytes
  int64_t rows, cols;
  int64_t stride;  // elements from one row to the next, a multiple of 8
  int tile_rows;   // 1 to 256
};

}  // namespace flashsparse
