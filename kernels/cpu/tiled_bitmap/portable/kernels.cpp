// SPDX-License-Identifier: Apache-2.0
// A dense unit to masks and value lines, and back, in plain C++. Values are always written, and the
// cursor moves on if they are kept: no branch to predict.
#include "cpu/tiled_bitmap/kernels.h"

#include <cstring>

#include "formats/zero.h"

namespace flashsparse::tiled_bitmap::portable {
namespace {

// Items of each column, and one more that a run without a value left writes.
using Columns = uint16_t[kLineWords][kColumnItems + 1];

void read_masks(const uint16_t* weight, int64_t stride, int rows, int cols, uint32_t* masks) {
  std::memset(masks, 0, kUnitMasks * sizeof *masks);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      const uint32_t kept = !is_zero(weight[r * stride + c]);
      const int lane = r % 8 * 4 + c % 8 / 2, bit = c % 64 / 8 + 8 * (c % 2) + r / 8 * 16;
      masks[lane * kMaskWords + c / 64] |= kept << bit;
    }
  }
}

void count_runs(const uint32_t* masks, RunLengths lengths) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int run = 0; run < kRuns; ++run) {
      const uint32_t* own = masks + lane * kMaskWords + run * kRunMasks;
      lengths[run][lane] =
          static_cast<uint8_t>(__builtin_popcount(own[0]) + __builtin_popcount(own[1]));
    }
  }
}

// Calls body(row, column, kept, item) for every weight of a unit, runs in the order in which
// columns hold them and each in its own order; item is a place in `columns`.
template <typename Body>
void for_each_item(const uint32_t* masks, const uint32_t* starts, Columns& columns,
                   const Body& body) {
  for (int run = 0; run < kRuns; ++run) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t start = starts[lane] >> 16 * run & 0xffff;
      uint16_t* item = columns[start % kLineWords] + start / kLineWords;
      for (int word = run * kRunMasks; word < (run + 1) * kRunMasks; ++word) {
        const uint32_t mask = masks[lane * kMaskWords + word];
        for (int j = 0; j < 8; ++j) {
          for (int e = 0; e < 4; ++e) {
            const int bit = j + 8 * e;
            const uint16_t kept = mask >> bit & 1;
            body(bit_row(lane, bit), bit_col(lane, word, bit), static_cast<uint16_t>(-kept), item);
            item += kept;
          }
        }
      }
    }
  }
}

void write_values(const uint16_t* weight, int64_t stride, int rows, int cols, const uint32_t* masks,
                  const uint32_t* starts, int value_lines, uint32_t* lines) {
  Columns columns = {};
  for_each_item(masks, starts, columns, [&](int r, int c, uint16_t kept, uint16_t* item) {
    *item = r < rows && c < cols ? weight[r * stride + c] & kept : 0;
  });
  for (int line = 0; line < value_lines; ++line) {
    for (int c = 0; c < kLineWords; ++c) {
      *lines++ = columns[c][2 * line] | static_cast<uint32_t>(columns[c][2 * line + 1]) << 16;
    }
  }
}

void read_unit(const uint32_t* lines, int value_lines, uint16_t* unit, int64_t stride) {
  Columns columns;
  const uint32_t* values = lines + kHeadLines * kLineWords;
  for (int line = 0; line < value_lines; ++line) {
    for (int c = 0; c < kLineWords; ++c, ++values) {
      columns[c][2 * line] = static_cast<uint16_t>(*values);
      columns[c][2 * line + 1] = static_cast<uint16_t>(*values >> 16);
    }
  }
  for (auto& column : columns) column[2 * value_lines] = 0;
  for_each_item(lines, lines + kUnitMasks, columns,
                [&](int r, int c, uint16_t kept, const uint16_t* item) {
                  unit[r * stride + c] = *item & kept;
                });
}

}  // namespace

const Kernels kKernels = {read_masks, count_runs, write_values, read_unit};

}  // namespace flashsparse::tiled_bitmap::portable
