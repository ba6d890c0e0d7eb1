// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/wgmma_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

namespace flashsparse::sparse_24 {

namespace {

using mma_units::kGroupRows;
using mma_units::kMostCluster;
using mma_units::kMostXStages;
using mma_units::kPanelBytes;
using mma_units::wgmma_stage_bytes;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Fitted to 2,160 launches on an H200 (benchmarks/gpu/nm.py --launches), native values: its choices
// are on average 2% slower than the fastest of those. Bytes a microsecond and multiprocessor from
// memory and from the L2, clocks a microsecond, and how much slower shared memory is than the
// budget at the head of wgmma.cuh says; of other GPUs of this kind the ratios are much the same.
constexpr double kMemory = 33.3e3, kL2 = 48e3, kClock = 1.69e3, kShared = 1.07;
constexpr double kPanelClocks = 150;  // of one warpgroup, between two products
// The same of codes by codes, and for each warpgroup of the block more: products with A in
// registers seem to take no less, however few the tokens. Fitted to 420 launches for 16 to 64
// tokens.
constexpr double kCodePanelClocks = 45, kCodeGroupClocks = 135, kCodeLatency = 0.7;
// And of codes that are widened for 16-bit x, with shared memory's share: fitted to 1,092 launches
// for 32 to 256 tokens (benchmarks/gpu/steps.py). Of launches that were timed there, those that
// this model takes for the fastest are on average 1.1% slower than the fastest, and 1.2% in all
// forms.
constexpr double kWidenedPanelClocks = 200, kWidenedGroupClocks = 80, kWidenedShared = 0.95;
constexpr double kLatency = 1.0;  // microseconds from a load to its value, under load
constexpr double kLaunch = 1.8;   // until the first x and weight are there
constexpr double kTile = 1.45;    // to begin and end one
constexpr double kRound = 1.7;    // until a cluster that had to wait has begun
constexpr double kSharing = 4.7;  // of sums between clusters, and how much more where a tile's
constexpr double kRagged = 2.8;   // parts begin and end anywhere
constexpr double kGiving = 0.6;   // of sums between blocks of a cluster
constexpr double kSums = 0.45;    // share of the time of sums in the L2 that nothing hides
// Where tiles begin anywhere, clusters do not ask for the same x at the same time, nor those of the
// same rows for the same weight: what the L2 cannot hold comes from memory again.
constexpr double kL2Bytes = 45e6;
constexpr double kCluster = 0.01;  // share of time for each doubling of a cluster

// Large clusters do not fill every part of a GPU.
int64_t slots_of(int cluster, const Gpu& gpu) {
  return (cluster >= 4 ? gpu.multiprocessors * 15 / 16 : gpu.multiprocessors) / cluster;
}

}  // namespace

double wgmma_cost(const WgmmaPlan& plan, int64_t rows, int64_t cols, int64_t tokens,
                  const Gpu& gpu) {
  const WgmmaShapeInfo& info = plan.info();
  const double groups = info.groups, width = info.tokens;
  const int64_t tiles = plan.tiles(rows, tokens), slots = slots_of(plan.cluster(), gpu);
  const double rounds = static_cast<double>(ceil_div(plan.clusters, std::max<int64_t>(slots, 1)));
  const int panel_cols = kPanelBytes / plan.x_bytes, step_panels = kUnitCols / panel_cols;
  const double panels =
      static_cast<double>(ceil_div(tiles * plan.tile_steps(cols), plan.clusters) * step_panels);
  // A panel: bytes of the block's weight, bytes of x, clocks of shared memory and of one warpgroup.
  const double element_bytes = static_cast<double>(plan.unit.bytes()) / (kUnitRows * kUnitCols);
  const double written = std::min<double>(width, static_cast<double>(tokens));
  const double weight = groups * kGroupRows * panel_cols * element_bytes, x = written * kPanelBytes;
  const bool codes = plan.unit.type != ValueType::kNative, widened = codes && plan.x_bytes == 2;
  const double shared = groups * width + width + weight / 128;
  const double alone = width + (widened ? kWidenedPanelClocks + kWidenedGroupClocks * groups
                                : codes ? kCodePanelClocks + kCodeGroupClocks * groups
                                        : kPanelClocks);
  const double token_tiles = static_cast<double>(ceil_div(tokens, info.tokens));
  const bool shares = plan.shares_tiles(rows, tokens), even = plan.clusters % tiles == 0;
  const double bytes = static_cast<double>(cols) * (rows * element_bytes + tokens * plan.x_bytes);
  const bool strays = shares && !even && token_tiles > 1 && bytes > kL2Bytes;
  const double memory = strays ? weight + x : weight / token_tiles;
  // The loads of a unit are on their way while one is multiplied, but for the last panel: ptxas has
  // it wait for them. (Several units at once, where registers hold them, were not faster.)
  const double waiting = ((codes ? kCodeLatency : kLatency) + alone / kClock) / step_panels;
  const double busy =
      (1 + kCluster * std::log2(plan.cluster())) *
      std::max({memory / kMemory, (weight + x / plan.down) / kL2,
                (widened ? kWidenedShared : kShared) * shared / kClock, alone / kClock, waiting});
  const double own_tiles = std::max(1.0, static_cast<double>(tiles) / plan.clusters);
  // Of a tile that others have a part in: the block's sums, and microseconds for them.
  const double given = groups * kGroupRows * written * sizeof(float);
  double sums = 0;
  if (plan.depth > 1) sums = kGiving + kSums * 2 * given / kL2;
  if (shares) {
    const double parts = 1 + std::max(1.0, static_cast<double>(plan.clusters) / tiles);
    sums = kSharing + (even ? 0 : kRagged) + kSums * (1 + parts) * given / kL2;
  }
  return kLaunch + rounds * (panels * busy + own_tiles * kTile + sums) + kRound * (rounds - 1);
}

const char* WgmmaPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                   const Gpu& gpu) const {
  constexpr int64_t kMostArrivals = 4096;
  if (!gpu.hopper) return "the GPU has no wgmma: it needs compute capability 9.0";
  if (shape < 0 || shape >= kWgmmaShapeCount) return "there is no such shape";
  if (!info().is_for(unit)) return "values of this type have no such shape";
  if (x_bytes != 2 &&
      (x_bytes != 1 || (unit.type != ValueType::kFp8 && unit.type != ValueType::kInt8)))
    return "x is 16 bits, or codes of 8 bits where the values are";
  if (x_bytes == 1 && unit.type == ValueType::kInt8 && cols > kMostInt8Cols)
    return "int32 has room for the sums of 262144 columns of int8";
  const auto is_power = [](int n) { return n >= 1 && n <= kMostCluster && (n & (n - 1)) == 0; };
  if (!is_power(down) || !is_power(depth) || cluster() > kMostCluster)
    return "a cluster has 1, 2, 4 or 8 blocks, each way and in all";
  if (!mma_units::wgmma_shares(info().tokens, down) ||
      !mma_units::wgmma_shares(info().tokens, depth))
    return "blocks of a cluster share the tokens of a tile in eights";
  if (stages < 2 || stages > kMostXStages) return "x has 2 to 16 stages";
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  if (rows < 1 || cols < 1 || tokens < 1) return "there is nothing to multiply";
  if (rows > INT32_MAX / 2 || cols > INT32_MAX / 2 || tokens > INT32_MAX / 2)
    return "there are too many rows, columns or tokens";
  if (depth > unit_cols(cols)) return "there are fewer units of columns than blocks for them";
  const int64_t count = tiles(rows, tokens), steps = count * tile_steps(cols);
  if (depth > 1 && clusters != count)
    return "blocks behind each other have one tile, and there are as many clusters as tiles";
  if (clusters < 1 || clusters > steps) return "a cluster has at least one step";
  if (count > INT32_MAX || steps * (int64_t{clusters} + 1) > INT32_MAX)
    return "there are too many steps";
  if (arrivals(rows, tokens) > kMostArrivals) return "too many tiles would be shared";
  return nullptr;
}

namespace {

// As many stages as there is room for.
bool give_stages(WgmmaPlan& plan, const Gpu& gpu) {
  plan.stages = 0;
  const int64_t room = gpu.shared_bytes - plan.shared_bytes();
  plan.stages = static_cast<int>(
      std::min<int64_t>(room / wgmma_stage_bytes(plan.info().tokens), kMostXStages));
  return room > 0 && plan.stages >= 2;
}

WgmmaPlan find_plan(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, UnitLayout unit,
                    int x_bytes) {
  WgmmaPlan best{};
  double least = -1;
  for (int shape = 0; shape < kWgmmaShapeCount; ++shape) {
    if (!kWgmmaShapes[shape].is_for(unit)) continue;
    // Wide tiles of few tokens take the same time for A in registers.
    if (has_few_shapes(unit) && kWgmmaShapes[shape].tokens >= 2 * std::max<int64_t>(tokens, 64))
      continue;
    for (int down = 1; down <= kMostCluster; down *= 2) {
      for (int depth = 1; down * depth <= kMostCluster; depth *= 2) {
        WgmmaPlan plan{shape, down, depth, 0, 1, unit, x_bytes};
        const int64_t tiles = plan.tiles(rows, tokens), slots = slots_of(plan.cluster(), gpu);
        if (slots < 1 || !give_stages(plan, gpu)) continue;
        // A range each; whole tiles to each; the same number of parts of each tile.
        for (const int64_t clusters : {slots, ceil_div(tiles, ceil_div(tiles, slots)), tiles,
                                       tiles * std::max<int64_t>(slots / tiles, 1)}) {
          plan.clusters = static_cast<int>(std::min(clusters, tiles * plan.tile_steps(cols)));
          if (plan.broken_rule(rows, cols, tokens, gpu)) continue;
          const double found = wgmma_cost(plan, rows, cols, tokens, gpu);
          if (least >= 0 && found >= least) continue;
          least = found;
          best = plan;
        }
      }
    }
  }
  return best;
}

}  // namespace

// It takes longer to compare all plans than to launch one: each is found once.
WgmmaPlan plan_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, UnitLayout unit,
                     int x_bytes) {
  static std::mutex mutex;
  static std::map<std::array<int64_t, 8>, WgmmaPlan> found;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [place, is_new] =
      found.try_emplace({rows, cols, tokens, gpu.multiprocessors, gpu.shared_bytes,
                         static_cast<int64_t>(unit.type), unit.group, x_bytes});
  if (is_new) place->second = find_plan(rows, cols, tokens, gpu, unit, x_bytes);
  return place->second;
}

}  // namespace flashsparse::sparse_24
