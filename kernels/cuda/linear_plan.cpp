// SPDX-License-Identifier: Apache-2.0
#include "cuda/linear_plan.h"

#include <algorithm>

namespace flashsparse::tiled_csl {

namespace {

// The cheapest shape for the tokens that holds an ordinary tile's words; where none does, the one
// that holds most.
int choose_shape(int64_t tokens, double words_a_tile) {
  int best = -1;
  for (int i = 0; i < kLinearShapeCount; ++i) {
    const LinearShapeInfo& shape = kLinearShapes[i];
    if (shape.tokens < tokens) continue;
    if (best >= 0 && shape.tokens > kLinearShapes[best].tokens) break;
    best = i;  // the shapes of a token count are listed by what they hold
    if (words_a_tile <= 32.0 * shape.team_warps * shape.held) break;
  }
  return best;
}

}  // namespace

LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t tokens, int64_t num_words,
                       int multiprocessors) {
  const int64_t down = tile_rows(rows), across = tile_cols(cols), tiles = down * across;
  LinearPlan plan;
  plan.shape = choose_shape(tokens, static_cast<double>(num_words) / tiles);
  const LinearShapeInfo& shape = kLinearShapes[plan.shape];
  // Two tile rows at a time read x half as often; with little work, fewer sums to add up count
  // for more.
  const int64_t slots = int64_t{multiprocessors} * shape.blocks;
  plan.group_rows = shape.teams() % 2 == 0 && tiles > 8 * slots * shape.teams() ? 2 : 1;
  const int64_t units = (down + plan.group_rows - 1) / plan.group_rows * across;
  plan.blocks = static_cast<int>(std::min(slots, units));
  return plan;
}

}  // namespace flashsparse::tiled_csl
