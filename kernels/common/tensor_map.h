// SPDX-License-Identifier: Apache-2.0
// The tensor map of a matrix in global memory for copies of its tiles: the driver's CUtensorMap,
// which the host makes (cuda/shared/tensor_map.h) and a kernel takes as a parameter. The emulator
// stores a TiledMatrix in it.
#pragma once
#include <cstdint>

namespace flashsparse {

struct alignas(64) TensorMap {
  uint64_t words[16];
};

// A matrix of 16-bit elements, and the size of the tiles that are copied from it; they have 64
// columns.
struct TiledMatrix {
  const uint16_t* data;  // 16-byte aligned
  int64_t rows, cols;
  int64_t stride;  // elements from one row to the next, a multiple of 8
  int tile_rows;   // 1 to 256
};

}  // namespace flashsparse
