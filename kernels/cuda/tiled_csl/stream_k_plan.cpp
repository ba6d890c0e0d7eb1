// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_csl/stream_k_plan.h"

#include <algorithm>

namespace flashsparse::linear {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

// Equal ranges (stream-K) keep every SM busy, but most of them begin and end inside a row of tiles,
// so a block writes partial sums of two rows. With split-K (every row in equally many parts) a
// block writes those of one, and some SMs stay idle. Costs are counted in tiles of a block; that of
// the second row was measured on an H200 (docs/kernels.md).
int plan_blocks(int64_t rows, int64_t cols, const ShapeInfo& shape, const Gpu& gpu) {
  const int64_t down = tile_rows(rows), across = tile_cols(cols), tiles = down * across;
  const int64_t slots = int64_t{gpu.multiprocessors} * shape.blocks;  // that run at once
  const int64_t even = std::min(std::max(slots, ceil_div(tiles, kMaxRange)), tiles);
  const int64_t parts = std::min(slots / down, across);
  if (parts == 0) return static_cast<int>(even);
  const double second_row = 5 + shape.tokens / 8.0;
  const double even_cost = static_cast<double>(tiles) / even + second_row;
  const int64_t whole_cost = ceil_div(across, parts);
  const bool whole = whole_cost <= even_cost && whole_cost <= kMaxRange;
  return static_cast<int>(whole ? down * parts : even);
}

}  // namespace flashsparse::linear
