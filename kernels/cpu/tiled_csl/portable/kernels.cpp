// SPDX-License-Identifier: Apache-2.0
// Packs a tile of a dense weight to Tiled-CSL words, in the canonical order (formats/tiled_csl.h),
// and converts a dense tile to panels.
#include "cpu/tiled_csl/kernels.h"

#include "cpu/portable/pack_panel.h"
#include "cpu/portable/parts.h"
#include "cpu/tiled_csl/order.h"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl::portable {
namespace {

void count_tiles(const uint16_t* row, int64_t cols, int64_t* nonzeros) {
  for (int64_t col = 0; col < cols; col += kTileCols, ++nonzeros) {
    const int64_t left = cols - col;
    *nonzeros += cpu::portable::count_nonzeros(row + col, left < kTileCols ? left : kTileCols);
  }
}

int64_t pack_tile(const uint16_t* weight, int64_t stride, int rows, int cols, uint32_t* words) {
  BankQueues banks;
  uint32_t pairs[kBanks][kTileRows][2];
  int pair_count[kBanks] = {};
  for (int b = 0; b < kBanks; ++b) banks.singles[b] = 0;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; c += 2) {
      const uint16_t low = weight[r * stride + c];
      const uint16_t high = c + 1 < cols ? weight[r * stride + c + 1] : 0;
      const uint32_t place = location(static_cast<uint32_t>(r), static_cast<uint32_t>(c));
      const uint32_t b = bank_of(place);
      const bool has_low = !is_zero(low), has_high = !is_zero(high);
      if (has_low && has_high) {
        uint32_t* pair = pairs[b][pair_count[b]++];
        pair[0] = make_word(low, place);
        pair[1] = make_word(high, place + 1);
      } else {  // always written, counted if kept: no branch to predict
        banks.words[b][banks.singles[b]] =
            has_low ? make_word(low, place) : make_word(high, place + 1);
        banks.singles[b] += has_low || has_high;
      }
    }
  }
  for (int b = 0; b < kBanks; ++b) {
    uint32_t* out = banks.words[b] + banks.singles[b];
    for (int i = 0; i < pair_count[b]; ++i) {
      *out++ = pairs[b][i][0];
      *out++ = pairs[b][i][1];
    }
    banks.count[b] = banks.singles[b] + 2 * pair_count[b];
  }
  const int full_groups = banks.shortest();
  uint32_t* out = words;
  for (int g = 0; g < full_groups; ++g) {
    for (int b = 0; b < kBanks; ++b) *out++ = banks.words[b][g];
  }
  return write_remaining(banks, full_groups, out) - words;
}

uint16_t* pack_tile_panel(const uint16_t* tile, int rows, int cols, uint32_t* masks,
                          uint16_t* values) {
  return cpu::portable::pack_elements(rows, cols, masks, values, [=](int r, int64_t c) {
    return tile[location(static_cast<uint32_t>(r), static_cast<uint32_t>(c))];
  });
}

}  // namespace

const Kernels kKernels = {count_tiles, pack_tile, pack_tile_panel};

}  // namespace flashsparse::tiled_csl::portable
