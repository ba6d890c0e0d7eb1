// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/wgmma_plan.h"

#include <algorithm>
#include <cmath>

#include "cuda/mma_units/wgmma_search.h"
#include "cuda/plan/search.h"

namespace flashsparse::sparse_24 {

namespace {

using mma_units::kGroupRows;
using mma_units::kMostCluster;
using mma_units::kPanelBytes;
using mma_units::wgmma_slots;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Fitted on an H200; the ratios are much the same on other GPUs of this architecture. kL2 is bytes
// per microsecond and SM, kClock clocks per microsecond.
constexpr double kL2 = 48e3, kClock = 1.69e3;
constexpr double kLaunch = 1.8;  // microseconds until the first x and weight have arrived
constexpr double kTile = 1.45;   // prologue and epilogue of a tile
constexpr double kRound = 1.7;   // until a cluster of a later wave has begun
constexpr double kSums = 0.45;   // share of the L2 time of partial sums that is not hidden
// Under stream-K, clusters do not read the same x at the same time, nor those of the same rows the
// same weight: what the L2 cannot hold is read from memory again.
constexpr double kL2Bytes = 45e6;
constexpr double kCluster = 0.01;  // share of the time, for each doubling of the cluster

// What depends on the value type and on whether x is quantized.
struct Costs {
  double memory;   // bytes per microsecond and SM if all SMs read
  double most;     // the same if few do
  double shared;   // time of shared memory, over the budget at the head of wgmma.cuh
  double panel;    // clocks of a warpgroup between two wgmma groups
  double group;    // and for each warpgroup of the block: wgmma with A in registers
  double latency;  // microseconds of a load, under load
  double sharing;  // of a reduction between clusters,
  double ragged;   // and more under stream-K
  double giving;   // of a reduction between the blocks of a cluster
};

// Fitted to 3,108 launches for 16 to 2,048 tokens after another kernel on an H200
// (sparse_24_many_sweep.csv). The launches that this model selects of these are on average 0.2 to
// 1.2% slower than the fastest, by value type, from 32 tokens on. Apart: up to 256 tokens, the
// types that are compiled in few shapes; and 8-bit values up to 64 tokens, with one group of rows a
// warpgroup and with two. A rate of memory beyond the GPU's means that it limits no such launch.
constexpr Costs kNativeCosts = {34e3, 34.5e3, 1.16, 60.5, 41, 1.1, 4.16, 4.88, 0};
constexpr Costs kCodesCosts = {32.6e3, 32.6e3, 1.49, 9.18, 212, 0.721, 13.6, 1.51, 2.89};
constexpr Costs kWidenedCosts = {291e3, 417e3, 1.07, 450, 35.5, 0.647, 2.24, 21.7, 0.1};
constexpr Costs kFewShapesCosts = {19e3, 41.7e3, 1.1, 119, 18.8, 0.944, 3.26, 2.42, 0.664};
constexpr Costs kFewCodesCosts = {29.8e3, 33.5e3, 0.88, 13, 0, 0.17, 1.4, 2.9, 0.15};
constexpr Costs kHighCodesCosts = {36.9e3, 42.6e3, 1.42, 20, 151, 0.7, 4.3, 3.5, 0.65};
constexpr Costs kFewWidenedCosts = {142e3, 444e3, 1.52, 19.3, 11.2, 0.716, 2.99, 0.005, 0};
constexpr Costs kHighWidenedCosts = {33.8e3, 183e3, 1.96, 242, 64.8, 1.04, 3.82, 1.79, 0.313};

// For so few tokens, if x is quantized by a kernel before and the blocks leave no SM to that of the
// next layer: microseconds, and more for each column.
constexpr double kCrowded = 0.6, kCrowdedColumn = 0.5e-3;

bool is_few(UnitLayout unit, int64_t tokens) {
  return unit.type != ValueType::kNative && !has_few_shapes(unit) && tokens <= 64;
}

const Costs& costs_of(const WgmmaPlan& plan, int64_t tokens) {
  if (plan.unit.type == ValueType::kNative) return kNativeCosts;
  const bool rounded = plan.x_bytes == 1;
  if (plan.info().high > 1) return rounded ? kHighCodesCosts : kHighWidenedCosts;
  if (is_few(plan.unit, tokens)) return rounded ? kFewCodesCosts : kFewWidenedCosts;
  if (rounded) return kCodesCosts;
  return has_few_shapes(plan.unit) && tokens <= 256 ? kFewShapesCosts : kWidenedCosts;
}

// A panel of x, of `written` tokens, by a block of a launch of `blocks`; the weight is read from
// memory once for `token_tiles` tiles of tokens, or, if it strays, with x for every tile.
struct Panel {
  int x_bytes, cluster, down, blocks;
  double written, token_tiles;
  bool strays;
  double l2 = kL2, doubling = kCluster;

  int cols() const { return kPanelBytes / x_bytes; }
  // Microseconds.
  double busy(const WgmmaShapeInfo& info, UnitLayout unit, const Costs& costs,
              const Gpu& gpu) const {
    const double groups = info.groups, width = info.tokens;
    // Bytes of the block's weight and of x, clocks of shared memory and of a warpgroup.
    const double element_bytes = static_cast<double>(unit.bytes()) / (kUnitRows * kUnitCols);
    const double weight = groups * kGroupRows * cols() * element_bytes, x = written * kPanelBytes;
    const double shared = groups * width + width + weight / 128;
    const double alone = width + costs.panel + costs.group * groups;
    const double memory = strays ? weight + x : weight / token_tiles;
    // The loads of a 16x256 block are in flight while another is multiplied, except during its last
    // panel, before which ptxas waits for them. (Prefetching several blocks was not faster.)
    const double waiting = (costs.latency + alone / kClock) / (kUnitCols / cols());
    const double share = static_cast<double>(gpu.multiprocessors) / blocks;
    const double rate = std::min(costs.most, costs.memory * std::max(1.0, share));
    return (1 + doubling * std::log2(cluster)) *
           std::max({memory / rate, (weight + x / down) / l2, costs.shared * shared / kClock,
                     alone / kClock, waiting});
  }
};

}  // namespace

double wgmma_panel(const WgmmaShapeInfo& info, UnitLayout unit, int down, double written,
                   double token_tiles, int blocks, const Gpu& gpu) {
  // Fitted to launches of experts on an H200 (experts_launches_shapes.csv and _many.csv). Blocks
  // that share rows or tokens of an expert run beside each other, so the L2 gives more, and memory
  // is not the limiter.
  constexpr double kExpertsL2 = 80e3, kExpertsCluster = 0.03;
  constexpr Costs kNative = {72e3, 72e3, 1.06, 75, 0, 1.0, 0, 0, 0};
  constexpr Costs kWidened = {72e3, 72e3, 0.94, 180, 70, 0.7, 0, 0, 0};
  constexpr Costs kFewWidened = {61e3, 61e3, 0.94, 262, 52, 0.7, 0, 0, 0};
  const Costs& costs = unit.type == ValueType::kNative ? kNative
                       : is_few(unit, info.tokens)     ? kFewWidened
                                                       : kWidened;
  return Panel{2, down, down, blocks, written, token_tiles, false, kExpertsL2, kExpertsCluster}
      .busy(info, unit, costs, gpu);
}

double wgmma_cost(const WgmmaPlan& plan, int64_t rows, int64_t cols, int64_t tokens,
                  const Gpu& gpu) {
  const WgmmaShapeInfo& info = plan.info();
  const Costs& costs = costs_of(plan, tokens);
  const double groups = info.groups, width = info.tokens;
  const int64_t tiles = plan.tiles(rows, tokens), slots = wgmma_slots(plan.cluster(), gpu);
  const double rounds = static_cast<double>(ceil_div(plan.clusters, std::max<int64_t>(slots, 1)));
  const int step_panels = kUnitCols / (kPanelBytes / plan.x_bytes);
  const double panels =
      static_cast<double>(ceil_div(tiles * plan.tile_steps(cols), plan.clusters) * step_panels);
  const double element_bytes = static_cast<double>(plan.unit.bytes()) / (kUnitRows * kUnitCols);
  const double written = std::min<double>(width, static_cast<double>(tokens));
  const double token_tiles = static_cast<double>(ceil_div(tokens, info.tokens));
  const bool shares = plan.shares_tiles(rows, tokens), even = plan.clusters % tiles == 0;
  const double bytes = static_cast<double>(cols) * (rows * element_bytes + tokens * plan.x_bytes);
  const bool strays = shares && !even && token_tiles > 1 && bytes > kL2Bytes;
  const Panel panel{plan.x_bytes, plan.cluster(), plan.down, plan.blocks(),
                    written,      token_tiles,    strays};
  const double busy = panel.busy(info, plan.unit, costs, gpu);
  const double own_tiles = std::max(1.0, static_cast<double>(tiles) / plan.clusters);
  // Of a tile that several clusters share: bytes of the block's partial sums, and microseconds.
  const double given = groups * kGroupRows * written * sizeof(float);
  double sums = 0;
  if (plan.depth > 1) sums = costs.giving + kSums * 2 * given / kL2;
  if (shares) {
    const double parts = 1 + std::max(1.0, static_cast<double>(plan.clusters) / tiles);
    sums = costs.sharing + (even ? 0 : costs.ragged) + kSums * (1 + parts) * given / kL2;
  }
  const bool crowded = plan.x_bytes == 1 && is_few(plan.unit, tokens) &&
                       plan.blocks() > gpu.multiprocessors * 15 / 16;
  const double begin = kLaunch + (crowded ? kCrowded + kCrowdedColumn * cols : 0);
  return begin + rounds * (panels * busy + own_tiles * kTile + sums) + kRound * (rounds - 1);
}

const char* WgmmaPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                   const Gpu& gpu) const {
  if (const char* const rule = broken_cluster(gpu)) return rule;
  if (!info().is_for(unit)) return "values of this type have no such shape";
  if (x_bytes != 2 &&
      (x_bytes != 1 || (unit.type != ValueType::kFp8 && unit.type != ValueType::kInt8)))
    return "x is 16 bits, or codes of 8 bits where the values are";
  if (x_bytes == 1 && unit.type == ValueType::kInt8 && cols > kMostInt8Cols)
    return "int32 has room for the sums of 262144 columns of int8";
  if (const char* const rule = broken_stages()) return rule;
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  return broken_tiles(rows, cols, tokens);
}

namespace {

// The token counts that were measured; A in registers by fewer tokens is slower, not faster.
int64_t tokens_of_plan(int64_t tokens, UnitLayout unit) {
  return !is_few(unit, tokens) ? tokens : tokens <= 32 ? 32 : 64;
}

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, UnitLayout unit,
                   int x_bytes, const Body& body) {
  for (int shape = 0; shape < kWgmmaShapeCount; ++shape) {
    if (!kWgmmaShapes[shape].is_for(unit)) continue;
    // Two groups of rows a warpgroup were measured with one token tile only.
    if (kWgmmaShapes[shape].high > 1 && kWgmmaShapes[shape].tokens < tokens) continue;
    // With A in registers, wide tiles of few tokens take the same time.
    if (has_few_shapes(unit) && kWgmmaShapes[shape].tokens >= 2 * std::max<int64_t>(tokens, 64))
      continue;
    if (is_few(unit, tokens) && kWgmmaShapes[shape].tokens > 64) continue;
    // For few tokens the L2 is not the limiter: clusters of two took up to 15% longer.
    const int most_down = is_few(unit, tokens) ? 1 : kMostCluster;
    mma_units::for_each_wgmma(
        WgmmaPlan{shape, 1, 1, 0, 1, unit, x_bytes}, most_down, rows, cols, tokens, gpu,
        [&](WgmmaPlan& plan) { return mma_units::give_x_stages(plan, gpu); },
        [&](const WgmmaPlan& plan) { body(plan, wgmma_cost(plan, rows, cols, tokens, gpu)); });
  }
}

}  // namespace

Priced<WgmmaPlan> price_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                              UnitLayout unit, int x_bytes) {
  const int64_t most = tokens_of_plan(tokens, unit);
  const std::array<int64_t, 6> key{rows,       cols,   most, static_cast<int64_t>(unit.type),
                                   unit.group, x_bytes};
  return remembered(key, gpu, [&] {
    return cheapest<WgmmaPlan>(
        [&](const auto& body) { for_each_plan(rows, cols, most, gpu, unit, x_bytes, body); });
  });
}

std::vector<Priced<WgmmaPlan>> list_wgmma(int64_t rows, int64_t cols, int64_t tokens,
                                          const Gpu& gpu, UnitLayout unit, int x_bytes) {
  return listed<WgmmaPlan>([&](const auto& body) {
    for_each_plan(rows, cols, tokens_of_plan(tokens, unit), gpu, unit, x_bytes, body);
  });
}

}  // namespace flashsparse::sparse_24
