// SPDX-License-Identifier: Apache-2.0
#include "cuda/hybrid_units/wgmma_plan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cuda/mma_units/wgmma_search.h"
#include "cuda/plan/search.h"

namespace flashsparse::hybrid_units {

namespace {

using mma_units::kGroupRows;
using mma_units::kMostCluster;
using mma_units::kPanelBytes;
using mma_units::wgmma_slots;

constexpr int kPanels = 4;  // of a unit

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The model of sparse_24's kernel (cuda/sparse_24/wgmma_plan.cpp), with dense units beside.
constexpr double kClock = 1.69e3;                            // clocks per microsecond
constexpr double kLaunch = 2.3, kTile = 1.45, kRound = 1.7;  // microseconds

// What depends on the value type.
struct Costs {
  double memory;        // bytes per microsecond and SM if all SMs read;
  double fewer;         // if few do, each has a share more that is a power of theirs
  double l2;            // bytes per microsecond and SM
  double shared;        // time of shared memory, over that counted
  double panel, group;  // clocks of a warpgroup, and for each of the block
  double second;        // clocks of second halves
  double sharing;       // microseconds of a reduction between clusters,
  double ragged;        // and more under stream-K
  double giving;        // of a reduction between the blocks of a cluster
  double sums;          // share of the L2 time of partial sums that is not hidden
  double cluster;       // share of the time, for each doubling of the cluster
};

// Fitted to 3,948 launches of four kinds, seven layers and 16 to 512 tokens after another kernel on
// an H200 (hybrid_units_sweep.csv): choices are on average 0.7% (native values) and 0.2% (codes)
// slower than the fastest of them, and at most 4 and 7% from 33 tokens on. A rate of memory beyond
// the GPU's means that it limits no such launch.
constexpr Costs kNativeCosts = {29.3e3, 0.181, 53.9e3, 1.29,  296,   53.5,
                                65.3,   1.95,  6.97,   0.167, 0.924, 0.0314};
constexpr Costs kCodesCosts = {7.24e6, 0.382, 43.1e3, 1.3,   105,   142,
                               99.4,   0.84,  1.78,   0.219, 0.829, 0.0193};

// In microseconds.
double cost(const WgmmaPlan& plan, int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) {
  const Costs& costs = plan.unit.type == ValueType::kNative ? kNativeCosts : kCodesCosts;
  const double groups = plan.info().groups, width = plan.info().tokens;
  const int64_t tiles = plan.tiles(rows, tokens), slots = wgmma_slots(plan.cluster(), gpu);
  const double rounds = static_cast<double>(ceil_div(plan.clusters, std::max<int64_t>(slots, 1)));
  const double panels =
      static_cast<double>(ceil_div(tiles * plan.tile_steps(cols), plan.clusters) * kPanels);
  // How often one of a warpgroup's four units is dense, if dense ones are anywhere.
  const double any = 1 - std::pow(1 - static_cast<double>(plan.dense) / kParts, 4);
  // Per panel: bytes of the block's weight and of x, clocks of shared memory and of a warpgroup.
  const double written = std::min<double>(width, static_cast<double>(tokens));
  const double weight = groups * 4 * plan.unit_bytes() / kPanels, x = written * kPanelBytes;
  const double shared = (1 + any) * groups * width + width + weight / 128;
  const double alone = (1 + any) * width + costs.panel + costs.group * groups + costs.second * any;
  const double token_tiles = static_cast<double>(ceil_div(tokens, plan.info().tokens));
  const double share = static_cast<double>(gpu.multiprocessors) / plan.blocks();
  const double rate = costs.memory * std::pow(std::max(1.0, share), costs.fewer);
  const double busy = (1 + costs.cluster * std::log2(plan.cluster())) *
                      std::max({weight / token_tiles / rate, (weight + x / plan.down) / costs.l2,
                                costs.shared * shared / kClock, alone / kClock});
  const double own_tiles = std::max(1.0, static_cast<double>(tiles) / plan.clusters);
  const double given = groups * kGroupRows * written * sizeof(float);
  double sums = plan.depth > 1 ? costs.giving + costs.sums * 2 * given / costs.l2 : 0;
  if (plan.shares_tiles(rows, tokens)) {
    const double parts = 1 + std::max(1.0, static_cast<double>(plan.clusters) / tiles);
    sums = costs.sharing + (plan.clusters % tiles == 0 ? 0 : costs.ragged) +
           costs.sums * (1 + parts) * given / costs.l2;
  }
  return kLaunch + rounds * (panels * busy + own_tiles * kTile + sums) + kRound * (rounds - 1);
}

}  // namespace

const char* WgmmaPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                   const Gpu& gpu) const {
  if (const char* const rule = broken_cluster(gpu)) return rule;
  if (!wgmma_is_compiled(info(), unit)) return "values of this type have no such shape";
  if (const char* const rule = broken_stages()) return rule;
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  if (unit_rows(rows) * unit_cols(cols) >= INT32_MAX) return "there are too many units";
  return broken_tiles(rows, cols, tokens);
}

namespace {

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, UnitLayout unit,
                   int dense, const Body& body) {
  for (int shape = 0; shape < kWgmmaShapeCount; ++shape) {
    if (!wgmma_is_compiled(kWgmmaShapes[shape], unit)) continue;
    // Wide tiles of few tokens take the same time.
    if (kWgmmaShapes[shape].tokens >= 2 * std::max<int64_t>(tokens, 64)) continue;
    // For one tile of tokens the L2 is not the limiter.
    const int most_down = tokens > kWgmmaShapes[shape].tokens ? kMostCluster : 1;
    mma_units::for_each_wgmma(
        WgmmaPlan{shape, 1, 1, 0, 1, unit, dense}, most_down, rows, cols, tokens, gpu,
        [&](WgmmaPlan& plan) { return mma_units::give_x_stages(plan, gpu); },
        [&](const WgmmaPlan& plan) { body(plan, cost(plan, rows, cols, tokens, gpu)); });
  }
}

}  // namespace

Priced<WgmmaPlan> price_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                              UnitLayout unit, int dense) {
  const std::array<int64_t, 6> key{rows,       cols, tokens, static_cast<int64_t>(unit.type),
                                   unit.group, dense};
  return remembered(key, gpu, [&] {
    return cheapest<WgmmaPlan>(
        [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, unit, dense, body); });
  });
}

std::vector<Priced<WgmmaPlan>> list_wgmma(int64_t rows, int64_t cols, int64_t tokens,
                                          const Gpu& gpu, UnitLayout unit, int dense) {
  return listed<WgmmaPlan>(
      [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, unit, dense, body); });
}

}  // namespace flashsparse::hybrid_units
