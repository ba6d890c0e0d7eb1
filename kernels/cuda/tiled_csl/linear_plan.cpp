// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_csl/linear_plan.h"

#include <algorithm>

namespace flashsparse::tiled_csl {

namespace {

// Of the shapes of the smallest sufficient token count, the first that holds an average tile's
// words in registers, or else the one that holds most. kLinearShapes lists them in that order.
int choose_shape(int64_t tokens, double words_a_tile, bool hopper) {
  int best = -1;
  for (int i = 0; i < kLinearShapeCount; ++i) {
    const LinearShapeInfo& shape = kLinearShapes[i];
    if (shape.hopper != hopper || shape.tokens < tokens) continue;
    if (best >= 0 && shape.tokens > kLinearShapes[best].tokens) break;
    best = i;
    // Tiles of random weights differ by a few percent.
    if (1.02 * words_a_tile <= 32.0 * shape.team_warps * shape.held + kTailWords) break;
  }
  return best;
}

}  // namespace

LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t tokens, int64_t num_words,
                       const Gpu& gpu) {
  const int64_t tiles = linear::tile_rows(rows) * linear::tile_cols(cols);
  LinearPlan plan;
  plan.shape = choose_shape(tokens, static_cast<double>(num_words) / tiles, gpu.has_wgmma());
  plan.blocks = linear::plan_blocks(rows, cols, kLinearShapes[plan.shape], gpu);
  return plan;
}

std::vector<LinearPlan> list_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) {
  std::vector<LinearPlan> all;
  for (int i = 0; i < kLinearShapeCount; ++i) {
    if (kLinearShapes[i].hopper == gpu.has_wgmma() && kLinearShapes[i].tokens >= tokens)
      all.push_back({i, linear::plan_blocks(rows, cols, kLinearShapes[i], gpu)});
  }
  return all;
}

double linear_microseconds(int64_t rows, int64_t cols, int64_t tokens, int64_t num_words,
                           const Gpu& gpu) {
  // Clocks of an SM per tile and per byte of it, for up to 8 tokens, and the share that each
  // further token adds; microseconds of a launch, and of the stream-K reduction.
  constexpr double kTile = 320, kByte = 0.028, kToken = 0.0135;
  constexpr double kLaunch = 3.3, kJoin = 3.5, kJoinToken = 0.05;
  const double tiles = static_cast<double>(rows) * cols / (linear::kTileRows * linear::kTileCols);
  const double bytes = sizeof(uint32_t) * static_cast<double>(num_words);
  const double clocks = kTile * tiles + kByte * bytes;
  const double busy =
      clocks / (gpu.multiprocessors * gpu.clock) * (1 + kToken * std::max<double>(0, tokens - 8));
  return kLaunch + kJoin + kJoinToken * tokens + std::max(bytes / gpu.memory, busy);
}

}  // namespace flashsparse::tiled_csl
