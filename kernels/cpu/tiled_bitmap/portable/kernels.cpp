// SPDX-License-Identifier: Apache-2.0
// Converts a dense unit to masks and value lines, and back, in plain C++.
//
// Masks are computed 8 columns at a time, with one comparison, which is one instruction on CPUs
// with 16-byte vectors. Values are moved one by one, but only the kept ones: their bits, in the
// order of the items, give their positions in the weight.
#include "cpu/tiled_bitmap/kernels.h"

#include <cstring>

#include "cpu/kernels.h"
#include "formats/zero.h"

namespace flashsparse::tiled_bitmap::portable {
namespace {

constexpr int kWordCols = 64;                // of a mask word
constexpr int kRunWeights = 32 * kRunMasks;  // of a lane
static_assert(kRunWeights == 64 && kMaskWords == 4);

// Items of each column, padded by a line so that columns begin in different sets of the cache.
using Columns = uint16_t[kLineWords][kColumnItems + 2];

using Eight = uint16_t __attribute__((vector_size(16)));  // columns of a row

// Byte c: which of the columns c, c + 8, ... of the 64 at `row`, of which `cols` exist, are kept.
uint64_t kept_in_row(const uint16_t* row, int cols) {
  Eight kept = {}, bit = {1, 1, 1, 1, 1, 1, 1, 1};
  int c = 0;
  for (; c < kWordCols && c + 8 <= cols; c += 8, bit += bit) {
    Eight values;
    std::memcpy(&values, row + c, sizeof values);
    kept |= reinterpret_cast<Eight>(values + values != 0) & bit;
  }
  for (; c < kWordCols && c < cols; ++c) {
    if (!is_zero(row[c])) kept[c % 8] |= bit[c % 8];
  }
  using Bytes = uint8_t __attribute__((vector_size(8)));
  const Bytes narrow = __builtin_convertvector(kept, Bytes);
  uint64_t bytes;
  std::memcpy(&bytes, &narrow, sizeof bytes);
  return bytes;
}

void read_masks(const uint16_t* weight, int64_t stride, int rows, int cols, uint32_t* masks) {
  for (int g = 0; g < 8; ++g) {
    for (int word = 0; word < kMaskWords; ++word) {
      const int col = word * kWordCols;
      const uint16_t* row = weight + g * stride + col;
      const uint64_t upper = g < rows ? kept_in_row(row, cols - col) : 0;
      const uint64_t lower = g + 8 < rows ? kept_in_row(row + 8 * stride, cols - col) : 0;
      for (int t = 0; t < 4; ++t) {
        masks[(4 * g + t) * kMaskWords + word] =
            static_cast<uint32_t>((upper >> 16 * t & 0xffff) | (lower >> 16 * t & 0xffff) << 16);
      }
    }
  }
}

// Population count in plain C++: not every instruction set has one.
uint32_t count_bits(uint32_t word) {
  word -= word >> 1 & 0x55555555;
  word = (word & 0x33333333) + (word >> 2 & 0x33333333);
  word = (word + (word >> 4)) & 0x0f0f0f0f;
  return word * 0x01010101 >> 24;
}

void count_runs(const uint32_t* masks, RunLengths lengths) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int run = 0; run < kRuns; ++run) {
      const uint32_t* own = masks + lane * kMaskWords + run * kRunMasks;
      lengths[run][lane] = static_cast<uint8_t>(count_bits(own[0]) + count_bits(own[1]));
    }
  }
}

// Exchanges the bits at `low` with those `distance` higher.
constexpr uint64_t exchange(uint64_t bits, uint64_t low, int distance) {
  const uint64_t different = (bits ^ bits >> distance) & low;
  return bits ^ different ^ different << distance;
}

// Moves bit j + 8 e of either half to bit 4 j + e: that of its item. The binary digits of its index
// change from e1 e0 j2 j1 j0 to j2 j1 j0 e1 e0; each step exchanges two of them.
constexpr uint64_t in_item_order(uint64_t mask) {
  mask = exchange(mask, 0x2222222222222222, 1);
  mask = exchange(mask, 0x00aa00aa00aa00aa, 7);
  mask = exchange(mask, 0x0c0c0c0c0c0c0c0c, 2);
  return exchange(mask, 0x0000cccc0000cccc, 14);
}

// Positions of the weights of a run in rows `stride` apart, relative to the first of its lane.
struct Places {
  int64_t of_item[kRunWeights];

  explicit Places(int64_t stride) {
    for (int i = 0; i < kRunWeights; ++i) {
      const int bit = i % 32 / 4 + i % 4 * 8;
      of_item[i] = bit_row(0, bit) * stride + bit_col(0, i / 32, bit);
    }
  }
};

// Calls body(items, kept, first) for every run, in the order of each column: its items in
// `columns`, a bit for each of its weights that is kept, and the position of its first weight in
// rows `stride` apart.
template <typename Body>
void for_each_run(const uint32_t* masks, const uint32_t* starts, Columns& columns, int64_t stride,
                  const Body& body) {
  for (int run = 0; run < kRuns; ++run) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t start = starts[lane] >> 16 * run & 0xffff;
      const uint32_t* own = masks + lane * kMaskWords + run * kRunMasks;
      body(columns[start % kLineWords] + start / kLineWords,
           in_item_order(own[0] | static_cast<uint64_t>(own[1]) << 32),
           bit_row(lane, 0) * stride + bit_col(lane, run * kRunMasks, 0));
    }
  }
}

void write_values(const uint16_t* weight, int64_t stride, int, int, const uint32_t* masks,
                  const uint32_t* starts, int item_bytes, int value_lines, uint32_t* lines) {
  Columns columns;
  const Places places(stride);
  const int in_word = items_of_word(item_bytes);
  for (auto& column : columns) std::memset(column, 0, value_lines * in_word * sizeof *column);
  for_each_run(masks, starts, columns, stride, [&](uint16_t* item, uint64_t kept, int64_t first) {
    for (; kept; kept &= kept - 1) *item++ = weight[first + places.of_item[__builtin_ctzll(kept)]];
  });
  for (int line = 0; line < value_lines; ++line) {
    for (int c = 0; c < kLineWords; ++c, ++lines) {
      const uint16_t* items = columns[c] + in_word * line;
      if (item_bytes == 2) {
        std::memcpy(lines, items, sizeof *lines);
      } else {
        *lines = (items[0] & 0xffu) | (items[1] & 0xffu) << 8 | (items[2] & 0xffu) << 16 |
                 (items[3] & 0xffu) << 24;
      }
    }
  }
}

void read_unit(const uint32_t* lines, int item_bytes, int value_lines, uint16_t* unit,
               int64_t stride) {
  Columns columns;
  const Places places(stride);
  const int in_word = items_of_word(item_bytes);
  const uint32_t* values = lines + kHeadLines * kLineWords;
  for (int line = 0; line < value_lines; ++line) {
    for (int c = 0; c < kLineWords; ++c, ++values) {
      uint16_t* items = columns[c] + in_word * line;
      if (item_bytes == 2) {
        std::memcpy(items, values, sizeof *values);
      } else {
        for (int i = 0; i < 4; ++i) {
          const uint32_t byte = *values >> 8 * i & 0xff;  // a stored value of 0 becomes a zero
          items[i] = static_cast<uint16_t>(byte == kCodeZero ? 0 : cpu::kMark | byte);
        }
      }
    }
  }
  for (int r = 0; r < kUnitRows; ++r) std::memset(unit + r * stride, 0, kUnitCols * sizeof *unit);
  for_each_run(lines, lines + kUnitMasks, columns, stride,
               [&](const uint16_t* item, uint64_t kept, int64_t first) {
                 for (; kept; kept &= kept - 1) {
                   unit[first + places.of_item[__builtin_ctzll(kept)]] = *item++;
                 }
               });
}

}  // namespace

const Kernels kKernels = {read_masks, count_runs, write_values, read_unit};

}  // namespace flashsparse::tiled_bitmap::portable
