// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_gather/packed_plan.h"

#include <algorithm>
#include <cmath>

#include "cuda/nm_gather/transpose_x.h"

namespace flashsparse::nm_gather {

namespace {

constexpr int kColumnsMost = 1 << 24;  // offsets in a tile of x have 32 bits

// Rows of a tile.
constexpr int tile_rows(const Layout& layout) {
  return std::min(layout.unit_rows * layout.group_units, 128);
}

double density(const Layout& layout) {
  return static_cast<double>(layout.panel_steps) * kStep / layout.panel_columns;
}

// Tiles that are made at the same time read the least from memory where the weights of their rows
// and the x of their tokens are about as many bytes.
int best_band(const Layout& layout, int64_t tokens, const PackedPlan& plan, const Gpu& gpu) {
  const double weights = gpu.multiprocessors * plan.info().rows * density(layout);
  const double band = std::sqrt(weights / plan.info().tile_tokens());
  return static_cast<int>(std::clamp<int64_t>(std::llround(band), 1, plan.token_tiles(tokens)));
}

}  // namespace

const char* packed_complaint(const Layout& layout, int64_t cols, const Gpu& gpu) {
  if (!gpu.hopper)
    return "the packed kernel needs a GPU of compute capability 9.0, which has wgmma: use "
           "nm_gather_linear";
  if (layout.unit_rows != 32 || layout.group_units < 2)
    return "the packed kernel needs vectors of 64 or 128 rows: use nm_gather_linear";
  if (layout.value_type != ValueType::kNative)
    return "the packed kernel needs native values: use nm_gather_linear";
  if (x_tile_columns(layout, cols) > kColumnsMost)
    return "the packed kernel needs 2^24 columns or fewer: use nm_gather_linear";
  return nullptr;
}

const char* PackedPlan::complaint(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                                  const Gpu& gpu) const {
  if (const char* const wrong = packed_complaint(layout, cols, gpu)) return wrong;
  if (shape < 0 || shape >= kPackedShapeCount) return "there is no such shape";
  if (info().rows != tile_rows(layout)) return "the shape is for vectors of other rows";
  if (tiles(rows, tokens) > INT32_MAX / 2) return "too many tiles: multiply fewer tokens at a time";
  if (band < 1) return "a band has one column of tiles or more";
  return nullptr;
}

// A pair takes nearly as long in a small tile as in a large one, whatever its bytes. Fitted, in
// clocks of 1755 MHz, to the 160 products of benchmarks/results/nvidia-h200/nm_prompts.csv, which
// hold no other band, and tiles of 128x128 and 64x256 for 512 tokens alone
// (tests/kernels/test_cuda_packed_plan.py).
double packed_clocks(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                     const PackedPlan& plan, const Gpu& gpu) {
  constexpr double kPairClocks = 934, kPairToken = 0.47, kTile = 5300;
  const int64_t rounds = ceil_div(plan.tiles(rows, tokens), gpu.multiprocessors);
  const double pair = kPairClocks + kPairToken * plan.info().tile_tokens();
  return static_cast<double>(rounds) * (static_cast<double>(layout.pairs(cols)) * pair + kTile);
}

PackedPlan plan_packed(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                       const Gpu& gpu) {
  PackedPlan best{};
  double least = -1;
  for (int shape = 0; shape < kPackedShapeCount; ++shape) {
    PackedPlan plan{shape, 1};
    if (plan.info().rows != tile_rows(layout)) continue;
    const double cost = packed_clocks(layout, rows, cols, tokens, plan, gpu);
    if (least >= 0 && cost >= least) continue;
    plan.band = best_band(layout, tokens, plan, gpu);
    best = plan;
    least = cost;
  }
  return best;
}

}  // namespace flashsparse::nm_gather
