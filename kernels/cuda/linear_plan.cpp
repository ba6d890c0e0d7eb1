// SPDX-License-Identifier: Apache-2.0
#include "cuda/linear_plan.h"

#include <algorithm>

namespace flashsparse::tiled_csl {

namespace {

// The shape for the fewest tokens that will do, and of those the first that holds an ordinary
// tile's words; where none does, the one that holds most. kLinearShapes lists them in that order.
int choose_shape(int64_t tokens, double words_a_tile, bool hopper) {
  int best = -1;
  for (int i = 0; i < kLinearShapeCount; ++i) {
    const LinearShapeInfo& shape = kLinearShapes[i];
    if (shape.hopper != hopper || shape.tokens < tokens) continue;
    if (best >= 0 && shape.tokens > kLinearShapes[best].tokens) break;
    best = i;
    // Beside the held words there is the tail, up to a chunk, and tiles of random weights differ by
    // a few per cent.
    if (1.02 * words_a_tile <= 32.0 * shape.team_warps * shape.held + kLinearChunk) break;
  }
  return best;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many blocks share the tiles, of at most `slots` that run at once.
//
// Equal pieces keep every multiprocessor busy, but most of them begin and end inside a row, and the
// sums of two rows have to be added up. Whole shares of a row (every row cut into the same number
// of parts) add up one, and leave some multiprocessors without work. Counted in tiles of a block;
// what the second row costs was measured on an H200 (docs/kernels.md).
int64_t choose_blocks(int64_t tile_rows, int64_t tile_cols, int64_t slots, int tokens) {
  const int64_t tiles = tile_rows * tile_cols;
  const int64_t even = std::min(std::max(slots, ceil_div(tiles, kMaxPiece)), tiles);
  const int64_t parts = std::min(slots / tile_rows, tile_cols);
  if (parts == 0) return even;
  const double second_row = 5 + tokens / 8.0;  // tiles of a block
  const double even_cost = static_cast<double>(tiles) / even + second_row;
  const int64_t whole_cost = ceil_div(tile_cols, parts);
  return whole_cost <= even_cost && whole_cost <= kMaxPiece ? tile_rows * parts : even;
}

}  // namespace

LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t tokens, int64_t num_words, Gpu gpu) {
  const int64_t down = tile_rows(rows), across = tile_cols(cols);
  LinearPlan plan;
  plan.shape = choose_shape(tokens, static_cast<double>(num_words) / (down * across), gpu.hopper);
  const LinearShapeInfo& shape = kLinearShapes[plan.shape];
  const int64_t slots = int64_t{gpu.multiprocessors} * shape.blocks;
  plan.blocks = static_cast<int>(choose_blocks(down, across, slots, shape.tokens));
  return plan;
}

}  // namespace flashsparse::tiled_csl
