// SPDX-License-Identifier: Apache-2.0
// A weight as a packer reads it, block by block: from dense memory, or from another format that is
// unpacked a block at a time.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>

#include "common/parallel.h"

namespace flashsparse::cpu {

struct Block {  // rows x cols values of a weight, the first of them at (row, col)
  int64_t row, col, rows, cols;
  const uint16_t* values;
  int64_t stride;
};

// Calls `consume` for every block of a weight once, in any order and from several threads. May be
// called repeatedly.
using Blocks = std::function<void(const std::function<void(const Block&)>& consume)>;

// Blocks of `high` rows and `wide` columns of a dense weight[rows, cols].
inline Blocks blocks_of(const uint16_t* weight, int64_t rows, int64_t cols, int64_t high,
                        int64_t wide) {
  return [=](const std::function<void(const Block&)>& consume) {
    const int64_t across = (cols + wide - 1) / wide, down = (rows + high - 1) / high;
    parallel_chunks(down * across, [&](int64_t index) {
      const int64_t row = index / across * high, col = index % across * wide;
      consume({row, col, std::min(high, rows - row), std::min(wide, cols - col),
               weight + row * cols + col, cols});
    });
  };
}

}  // namespace flashsparse::cpu
