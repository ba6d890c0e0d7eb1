// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_csl/linear_plan.h"

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
    // Tiles of random weights differ by a few per cent.
    if (1.02 * words_a_tile <= 32.0 * shape.team_warps * shape.held + kTailWords) break;
  }
  return best;
}

}  // namespace

LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t tokens, int64_t num_words,
                       const Gpu& gpu) {
  const int64_t tiles = linear::tile_rows(rows) * linear::tile_cols(cols);
  LinearPlan plan;
  plan.shape = choose_shape(tokens, static_cast<double>(num_words) / tiles, gpu.hopper);
  plan.blocks = linear::plan_blocks(rows, cols, kLinearShapes[plan.shape], gpu);
  return plan;
}

}  // namespace flashsparse::tiled_csl
