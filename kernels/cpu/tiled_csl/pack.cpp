// SPDX-License-Identifier: Apache-2.0
// Packs dense blocks to Tiled-CSL.
#include <algorithm>

#include "cpu/tiled_csl/kernels.h"
#include "cpu/tiled_csl/tile.h"
#include "cpu/tiled_csl/tiled_csl.h"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

void count(const cpu::Blocks& blocks, int64_t rows, int64_t cols, int64_t* offsets) {
  const Kernels& own = kernels();
  const int64_t across = tile_cols(cols), tiles = tile_rows(rows) * across;
  std::fill_n(offsets, tiles + 1, int64_t{0});
  blocks([&](const cpu::Block& block) {
    for (int64_t row = 0; row < block.rows; ++row) {
      const int64_t tile = (block.row + row) / kTileRows * across + block.col / kTileCols;
      own.count_tiles(block.values + row * block.stride, block.cols, offsets + tile + 1);
    }
  });
  for (int64_t index = 1; index <= tiles; ++index) {
    const int64_t words = (offsets[index] + kWordAlignment - 1) / kWordAlignment * kWordAlignment;
    offsets[index] = offsets[index - 1] + words;
  }
}

void pack(const cpu::Blocks& blocks, int64_t rows, int64_t cols, const int32_t* offsets,
          uint32_t* words) {
  const Kernels& own = kernels();
  const int64_t across = tile_cols(cols);
  blocks([&](const cpu::Block& block) {
    for (int64_t row = 0; row < block.rows; row += kTileRows) {
      for (int64_t col = 0; col < block.cols; col += kTileCols) {
        const int64_t index =
            (block.row + row) / kTileRows * across + (block.col + col) / kTileCols;
        uint32_t* out = words + offsets[index];
        uint32_t* end = words + offsets[index + 1];
        if (out == end) continue;
        const Tile tile = tile_at(index, rows, cols);
        out += own.pack_tile(block.values + row * block.stride + col, block.stride, tile.rows,
                             tile.cols, out);
        // Padding repeats the last word: storing it twice changes nothing, and conflicts with no
        // other bank.
        std::fill(out, end, out[-1]);
      }
    }
  });
}

}  // namespace flashsparse::tiled_csl
