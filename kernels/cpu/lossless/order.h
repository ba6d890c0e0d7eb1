// SPDX-License-Identifier: Apache-2.0
// The order in which unpacking leaves columns, in which activations are packed: bytes of sign and
// fraction are joined with bytes of exponents by instructions that take 8 bytes of each 16.
#pragma once
#include <cstdint>

#include "cpu/vectors.h"
#include "formats/lossless.h"

namespace {

using flashsparse::lossless::kChunkColumns;

// Column of a chunk at each place, of registers of kBytes bytes, after kBytes columns have become
// registers of bf16, and then, if kSplit, each of these one of its even columns in fp32 and one of
// its odd ones.
template <int kBytes, bool kSplit>
struct Order {
  int16_t column[kChunkColumns] = {};

  constexpr Order() {
    constexpr int kWide = kBytes / 2;  // columns of a register of bf16
    for (int place = 0; place < kChunkColumns; ++place) {
      const int within = place % kWide;
      const int lane = kSplit ? within % (kWide / 2) * 2 + within / (kWide / 2) : within;
      const int half = place / kWide % 2;
      column[place] =
          static_cast<int16_t>(place / kBytes * kBytes + lane / 8 * 16 + half * 8 + lane % 8);
    }
  }
};

// x[columns] in an order, zeros up to a whole chunk.
template <typename Ordered>
void pack_in_order(const Ordered& order, const void* x, Dtype dtype, int64_t columns,
                   float* packed) {
  float chunk[kChunkColumns];
  const int64_t bytes = dtype == Dtype::kFloat32 ? 4 : 2;
  for (int64_t first = 0; first < columns; first += kChunkColumns, packed += kChunkColumns) {
    const int64_t count = columns - first < kChunkColumns ? columns - first : kChunkColumns;
    widen_all(static_cast<const char*>(x) + first * bytes, dtype, count, chunk);
    for (int64_t j = count; j < kChunkColumns; ++j) chunk[j] = 0;
    for (int j = 0; j < kChunkColumns; ++j) packed[j] = chunk[order.column[j]];
  }
}

}  // namespace
