// SPDX-License-Identifier: Apache-2.0
// Dense rows to mask words and values, and back.
#include "cpu/portable/parts.h"
#include "formats/tiled_csl.h"

namespace flashsparse::cpu::portable {
namespace {

// Packs the elements that element(row, col) gives.
template <typename Element>
uint16_t* pack(int rows, int64_t cols, uint32_t* masks, uint16_t* values, Element element) {
  for (int64_t col = 0; col < cols; col += 2) {
    const int width = col + 1 < cols ? 2 : 1;
    uint32_t mask = 0;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < width; ++c) {
        const uint16_t bits = element(r, col + c);
        const uint32_t kept = !tiled_csl::is_zero(bits);
        mask |= kept << (2 * r + c);
        if (kept) *values++ = bits;
      }
    }
    *masks++ = mask;
  }
  return values;
}

}  // namespace

int64_t count_nonzeros(const uint16_t* values, int64_t count) {
  int64_t nonzeros = 0;
  while (count > 0) {  // runs short enough for 16-bit counters, which fill the vector lanes
    const int64_t run = count < 32768 ? count : 32768;
    uint16_t in_run = 0;
    for (int64_t i = 0; i < run; ++i) in_run += !tiled_csl::is_zero(values[i]);
    nonzeros += in_run;
    values += run;
    count -= run;
  }
  return nonzeros;
}

uint16_t* pack_panel(const uint16_t* weight, int64_t stride, int rows, int64_t cols,
                     uint32_t* masks, uint16_t* values) {
  return pack(rows, cols, masks, values, [=](int r, int64_t c) { return weight[r * stride + c]; });
}

uint16_t* pack_tile_panel(const uint16_t* tile, int rows, int cols, uint32_t* masks,
                          uint16_t* values) {
  return pack(rows, cols, masks, values, [=](int r, int64_t c) {
    return tile[tiled_csl::location(static_cast<uint32_t>(r), static_cast<uint32_t>(c))];
  });
}

void unpack_panel(const Panel& panel, int rows, int64_t cols, uint16_t* weight, int64_t stride) {
  for (int r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) weight[r * stride + c] = 0;
  }
  const uint16_t* value = panel.values;
  for (int64_t col = 0; col < cols; col += 2) {
    for (uint32_t mask = panel.masks[col / 2]; mask; mask &= mask - 1, ++value) {
      const int row = __builtin_ctz(mask) / 2, c = __builtin_ctz(mask) & 1;
      if (row < rows && col + c < cols) weight[row * stride + col + c] = *value;
    }
  }
}

}  // namespace flashsparse::cpu::portable
