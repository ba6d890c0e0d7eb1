// SPDX-License-Identifier: Apache-2.0
// Sizes of x_tiles, the transposed copy of x (transpose_x.cuh).
#pragma once
#include <cstdint>

#include "formats/nm_gather.h"

namespace flashsparse::nm_gather {

inline constexpr int kTileTokens = 64;
inline constexpr int kTransposeThreads = 256, kTransposeColumns = 128;  // of a block

// Columns of x_tiles: those of whole sections, rounded up to blocks of 32.
constexpr int64_t x_tile_columns(const Layout& layout, int64_t cols) {
  return ceil_div(layout.sections(cols) * layout.section_columns(), kBlock) * kBlock;
}
constexpr int64_t x_tile_count(int64_t tokens) { return ceil_div(tokens, kTileTokens); }
// Elements of x_tiles.
constexpr int64_t x_tiles_size(const Layout& layout, int64_t cols, int64_t tokens) {
  return x_tile_count(tokens) * x_tile_columns(layout, cols) * kTileTokens;
}

}  // namespace flashsparse::nm_gather
