// SPDX-License-Identifier: Apache-2.0
// A pattern on a weight, in numbers that save kernels divisions.
#pragma once
#include <cstdint>

#include "formats/nm_vector.h"

namespace flashsparse::nm_vector {

struct Extent {
  int n, m, bits;     // bits of a position
  int length_shift;   // log2 of the rows of a group
  int windows, kept;  // of a row
  int64_t index_bytes;

  static constexpr Extent of(const Pattern& pattern, int64_t cols) {
    int shift = 0;
    while (int64_t{1} << shift < pattern.length) ++shift;
    return {static_cast<int>(pattern.n),
            static_cast<int>(pattern.m),
            pattern.index_bits(),
            shift,
            static_cast<int>(pattern.windows(cols)),
            static_cast<int>(pattern.kept(cols)),
            pattern.index_bytes(cols)};
  }
  FS_HOST_DEVICE constexpr int64_t groups(int64_t rows) const {
    return (rows + (int64_t{1} << length_shift) - 1) >> length_shift;
  }
};

}  // namespace flashsparse::nm_vector
