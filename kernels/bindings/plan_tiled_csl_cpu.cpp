// SPDX-License-Identifier: Apache-2.0
#include "bindings/plan.h"
#include "bindings/tiled_csl.h"
#include "cuda/tiled_csl/linear_plan.h"

namespace flashsparse::planning {
namespace {

using tiled_csl::LinearPlan;

// Of the weight: its bytes without offsets.
int64_t words_of(const Product& product) {
  const int64_t tiles = linear::tile_rows(product.rows) * linear::tile_cols(product.cols);
  return std::max<int64_t>(product.nbytes / 4 - (tiles + 1), 0);
}

Kernel choose(const Product& product, const Gpu& gpu, const TokenLimits& limits) {
  return tiled_csl::choose_kernel(product.rows, product.cols, product.tokens, gpu, limits);
}

Launch plan(const Product& product, const Gpu& gpu) {
  Launch first{{}, 0};
  const int64_t most = linear::max_tokens(gpu), words = words_of(product);
  for (int64_t begin = 0; begin < product.tokens; begin += most) {
    const int64_t tokens = std::min(most, product.tokens - begin);
    const LinearPlan plan = tiled_csl::plan_linear(product.rows, product.cols, tokens, words, gpu);
    if (begin == 0) first.numbers = numbers_of(plan);
    first.microseconds +=
        tiled_csl::linear_microseconds(product.rows, product.cols, tokens, words, gpu);
  }
  return first;
}

std::vector<Launch> list(const Product& product, const Gpu& gpu) {
  const int64_t tokens = std::min<int64_t>(product.tokens, linear::max_tokens(gpu));
  std::vector<Launch> all;
  for (const LinearPlan& plan : tiled_csl::list_linear(product.rows, product.cols, tokens, gpu)) {
    all.push_back(
        {numbers_of(plan), tiled_csl::linear_microseconds(product.rows, product.cols, tokens,
                                                          words_of(product), gpu)});
  }
  return all;
}

Shapes shapes() {
  return shapes_of("tokens hopper wgmma team_warps held warps blocks", tiled_csl::kLinearShapes,
                   [](const tiled_csl::LinearShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens,     info.hopper, info.wgmma,
                                                 info.team_warps, info.held,   info.warps,
                                                 info.blocks};
                   });
}

}  // namespace

Format tiled_csl_planners() {
  return {"tiled_csl",
          choose,
          {{"tiled_csl.sparse", LaunchNumbers<LinearPlan>::kFields, shapes, plan, list}}};
}

}  // namespace flashsparse::planning
