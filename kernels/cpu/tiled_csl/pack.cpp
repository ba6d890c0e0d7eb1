// SPDX-License-Identifier: Apache-2.0
// Dense to Tiled-CSL.
#include <algorithm>

#include "common/parallel.h"
#include "cpu/tiled_csl/kernels.h"
#include "cpu/tiled_csl/tile.h"
#include "cpu/tiled_csl/tiled_csl.h"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

void count(const uint16_t* weight, int64_t rows, int64_t cols, int64_t* offsets) {
  const Kernels& own = kernels();
  const int64_t across = tile_cols(cols), tiles = tile_rows(rows) * across;
  std::fill_n(offsets, tiles + 1, int64_t{0});
  parallel_chunks(tile_rows(rows), [&](int64_t tile_row) {
    const int64_t end = std::min(rows, (tile_row + 1) * kTileRows);
    int64_t* counts = offsets + tile_row * across + 1;
    for (int64_t row = tile_row * kTileRows; row < end; ++row) {
      own.count_tiles(weight + row * cols, cols, counts);
    }
  });
  for (int64_t index = 1; index <= tiles; ++index) {
    const int64_t words = (offsets[index] + kWordAlignment - 1) / kWordAlignment * kWordAlignment;
    offsets[index] = offsets[index - 1] + words;
  }
}

void pack(const uint16_t* weight, int64_t rows, int64_t cols, const int32_t* offsets,
          uint32_t* words) {
  const Kernels& own = kernels();
  for_each_tile(rows, cols, [&](int64_t index, const Tile& tile) {
    uint32_t* out = words + offsets[index];
    uint32_t* end = words + offsets[index + 1];
    if (out == end) return;
    out += own.pack_tile(weight + tile.row * cols + tile.col, cols, tile.rows, tile.cols, out);
    // Padding repeats the last word: storing it twice changes nothing and disturbs no other bank.
    std::fill(out, end, out[-1]);
  });
}

}  // namespace flashsparse::tiled_csl
