// SPDX-License-Identifier: Apache-2.0
#include "cuda/nm_gather/packed_plan.h"

#include <algorithm>

#include "cuda/nm_gather/transpose_x.h"
#include "cuda/plan/search.h"

namespace flashsparse::nm_gather {

namespace {

constexpr int kColumnsMost = 1 << 24;  // offsets in a tile of x have 32 bits
// The fastest on average of the bands that were measured (nm_packed_sweep.csv, below): choosing the
// best one for each product would save 0.7%.
constexpr int kBand = 2;

// Rows of a tile.
constexpr int tile_rows(const Layout& layout) {
  return std::min(layout.unit_rows * layout.group_units, 128);
}

}  // namespace

const char* packed_complaint(const Layout& layout, int64_t cols, const Gpu& gpu) {
  if (!gpu.has_wgmma())
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

bool packed_pays(const Layout& layout, int64_t rows, int64_t tokens, const Gpu& gpu) {
  constexpr int64_t kMany = 256, kFew = 64;
  if (tokens > kMany) return true;
  const PackedPlan narrow{0, kBand};  // the smallest tiles, of 128x128
  return tokens > kFew && tile_rows(layout) == narrow.info().rows &&
         2 * narrow.tiles(rows, tokens) >= gpu.multiprocessors;
}

// Fitted to the launches of benchmarks/results/nvidia-h200/nm_packed_sweep.csv that have such
// bands, within 6% (tests/kernels/test_cuda_packed_plan.py). L2 bandwidth is the limiter: a pair of
// steps takes as long as loading its x and its weights while all SMs load theirs.
double packed_clocks(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                     const PackedPlan& plan, const Gpu& gpu) {
  constexpr double kL2 = 36;  // bytes per clock and SM
  // Clocks that are not hidden: per pair, tile (y, and the next tile's first loads) and launch.
  constexpr double kPairClocks = 100, kTileClocks = 2600, kLaunchClocks = 3100;
  const PackedShapeInfo& info = plan.info();
  const double bytes = 2.0 * kPair * (info.rows + info.tile_tokens());
  const double tile =
      static_cast<double>(layout.pairs(cols)) * (bytes / kL2 + kPairClocks) + kTileClocks;
  const int64_t rounds = ceil_div(plan.tiles(rows, tokens), gpu.multiprocessors);
  return static_cast<double>(rounds) * tile + kLaunchClocks;
}

namespace {

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                   const Body& body) {
  for (int shape = 0; shape < kPackedShapeCount; ++shape) {
    const PackedPlan plan{shape, kBand};
    if (plan.info().rows == tile_rows(layout))
      body(plan, packed_clocks(layout, rows, cols, tokens, plan, gpu));
  }
}

}  // namespace

Priced<PackedPlan> price_packed(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                                const Gpu& gpu) {
  return cheapest<PackedPlan>(
      [&](const auto& body) { for_each_plan(layout, rows, cols, tokens, gpu, body); });
}

std::vector<Priced<PackedPlan>> list_packed(const Layout& layout, int64_t rows, int64_t cols,
                                            int64_t tokens, const Gpu& gpu) {
  return listed<PackedPlan>(
      [&](const auto& body) { for_each_plan(layout, rows, cols, tokens, gpu, body); });
}

}  // namespace flashsparse::nm_gather
