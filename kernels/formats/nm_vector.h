// SPDX-License-Identifier: Apache-2.0
// nm_vector, version 1: the layout that packer, CPU and CUDA kernels share.
// NM-SpMM (Ma et al., 2025), section II: vector-wise N:M sparsity; docs/formats.md is our
// specification.
//
// A row of the weight [out_features, in_features] is divided into windows of m columns, of which n
// are kept: the same ones in the L rows of a group. 2:4 with L = 1:
//
//   row of the weight   0 a b 0 | c 0 0 d | 0 0 0 e      windows of m = 4 columns
//   values              a b c d 0 e                      columns ascending, n = 2 a window
//   positions           1 2 0 3 0 3                      in their window, log2(m) = 2 bits each
//
//   weight_packed  uint16 or uint32 [out_features][kept]       kept = n * windows
//   weight_index   uint8 [groups][ceil(kept * bits / 8)]       position j in bits [j * bits, ...)
//                                                              of the group's bytes, low bits first
// Canonical: a window that keeps fewer than n columns is filled up with the smallest others, and
// every zero is +0. The last window may reach past the weight (with zeros), the last group may have
// fewer rows.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::nm_vector {

struct Pattern {
  int64_t n, m;    // kept columns of each window of m; 1 <= n <= m <= 256
  int64_t length;  // L: rows that share the choice; a power of two, 128 at most

  FS_HOST_DEVICE constexpr int64_t windows(int64_t cols) const { return (cols + m - 1) / m; }
  FS_HOST_DEVICE constexpr int64_t kept(int64_t cols) const { return windows(cols) * n; }
  FS_HOST_DEVICE constexpr int64_t groups(int64_t rows) const {
    return (rows + length - 1) / length;
  }
  // Bits of a position.
  FS_HOST_DEVICE constexpr int index_bits() const {
    int bits = 1;
    while (int64_t{1} << bits < m) ++bits;
    return bits;
  }
  FS_HOST_DEVICE constexpr int64_t index_bytes(int64_t cols) const {
    return (kept(cols) * index_bits() + 7) / 8;
  }
};

// A block (a window of a group) that has nonzeros in more than n columns.
struct Breach {
  int64_t group, window;
  int columns;
};

// Position number `entry` of a group, whose bytes begin at `index`. A position has at most 8 bits,
// so it is in one byte or two; the second one is only read if it has bits of it.
FS_HOST_DEVICE constexpr uint32_t position(const uint8_t* index, int64_t entry, int bits) {
  const int64_t first = entry * bits;
  const int shift = static_cast<int>(first % 8);
  uint32_t word = index[first / 8];
  if (shift + bits > 8) word |= static_cast<uint32_t>(index[first / 8 + 1]) << 8;
  return word >> shift & ((1u << bits) - 1);
}

}  // namespace flashsparse::nm_vector
