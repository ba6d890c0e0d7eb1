// SPDX-License-Identifier: Apache-2.0
#include "cuda/exact_units/wgmma_plan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cuda/mma_units/wgmma_search.h"
#include "cuda/plan/search.h"

namespace flashsparse::exact_units {

namespace {

using mma_units::kGroupRows;
using mma_units::kMostCluster;
using mma_units::kPanelBytes;
using mma_units::wgmma_bytes_before_ring;
using mma_units::wgmma_slots;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The model, and the rates, of sparse_24's kernel with a weight ring and 16-bit x; but for its
// clocks between two groups of wgmma, counted in instructions, and kFewer, by lossless.csv of an
// H100.
constexpr double kMemory = 30.0e3, kMost = 46e3;  // bytes per microsecond and SM: of all, of few
constexpr double kL2 = 48e3, kClock = 1.69e3;     // bytes and clocks per microsecond
constexpr double kShared = 0.95;                  // time of shared memory, over that counted
constexpr double kPanel = 320, kGroup = 76;  // clocks of a warpgroup, and for each of the block
constexpr double kLaunch = 1.8, kTile = 1.45, kRound = 1.7;  // microseconds
constexpr double kSharing = 1.6, kRagged = 1.5, kGiving = 0.6, kSums = 0.45;
constexpr double kFewer = 0.57;    // power of the memory that fewer blocks have, each
constexpr double kCluster = 0.01;  // share of the time, for each doubling of the cluster
constexpr int64_t kRingShared = 225 << 10;

// In microseconds.
double cost(const WgmmaPlan& plan, int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) {
  const double groups = plan.info().groups, width = plan.info().tokens;
  const int64_t tiles = plan.tiles(rows, tokens), slots = wgmma_slots(plan.cluster(), gpu);
  const double rounds = static_cast<double>(ceil_div(plan.clusters, std::max<int64_t>(slots, 1)));
  const double panels =
      static_cast<double>(ceil_div(tiles * plan.tile_steps(cols), plan.clusters) * kPanels);
  // Per panel: bytes of the block's weight and of x, clocks of shared memory and of a warpgroup.
  const double written = std::min<double>(width, static_cast<double>(tokens));
  const double weight = groups * 4 * plan.unit_bytes() / kPanels, x = written * kPanelBytes;
  const double shared = 2 * groups * width + width + weight / 128 * 3;
  const double alone = 2 * width + kPanel + kGroup * groups;
  const double token_tiles = static_cast<double>(ceil_div(tokens, plan.info().tokens));
  const double share = static_cast<double>(gpu.multiprocessors) / plan.blocks();
  const double rate = std::min(kMost, kMemory * std::pow(std::max(1.0, share), kFewer));
  const double busy = (1 + kCluster * std::log2(plan.cluster())) *
                      std::max({weight / token_tiles / rate, (weight + x / plan.down) / kL2,
                                kShared * shared / kClock, alone / kClock});
  const double own_tiles = std::max(1.0, static_cast<double>(tiles) / plan.clusters);
  const double given = groups * kGroupRows * written * sizeof(float);
  double sums = plan.depth > 1 ? kGiving + kSums * 2 * given / kL2 : 0;
  if (plan.shares_tiles(rows, tokens)) {
    const double parts = 1 + std::max(1.0, static_cast<double>(plan.clusters) / tiles);
    sums =
        kSharing + (plan.clusters % tiles == 0 ? 0 : kRagged) + kSums * (1 + parts) * given / kL2;
  }
  return kLaunch + rounds * (panels * busy + own_tiles * kTile + sums) + kRound * (rounds - 1);
}

// Of a stage of the weight ring: a 16x256 block for each warp.
int64_t ring_stage_bytes(const WgmmaPlan& plan) {
  return int64_t{plan.info().groups} * 4 * plan.unit_bytes();
}

}  // namespace

int WgmmaPlan::weight_stages() const {
  const int64_t room = (kRingShared - wgmma_bytes_before_ring(*this)) / ring_stage_bytes(*this);
  return static_cast<int>(std::clamp<int64_t>(room, 0, mma_units::kWgmmaRingStages));
}

int64_t WgmmaPlan::shared_bytes() const {
  return wgmma_bytes_before_ring(*this) + weight_stages() * ring_stage_bytes(*this);
}

const char* WgmmaPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                   const Gpu& gpu) const {
  if (const char* const rule = broken_cluster(gpu)) return rule;
  if (!is_slots(unit_slots)) return "a unit has 4, 8 or 16 slots";
  if (shared_bytes() > gpu.shared_bytes || weight_stages() < 2)
    return "there is too little shared memory";
  if (const char* const rule = broken_tiles(rows, cols, tokens)) return rule;
  if (unit_rows(rows) * unit_cols(cols) > INT32_MAX) return "there are too many units";
  return nullptr;
}

namespace {

// As many panels of x as leave two stages of the weight, up to 8, in those that come together.
bool give_stages(WgmmaPlan& plan) {
  const int together = mma_units::wgmma_stage_panels(plan.info().tokens);
  for (plan.stages = 8; plan.stages >= 3; plan.stages -= together) {
    if (plan.weight_stages() >= 2) return true;
  }
  return false;
}

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, Kind kind,
                   int unit_slots, const Body& body) {
  int64_t widest = 32;
  while (widest < std::min<int64_t>(tokens, 256)) widest *= 2;
  for (int shape = 0; shape < kWgmmaShapeCount; ++shape) {
    if (kWgmmaShapes[shape].tokens > widest) continue;
    // For one tile of tokens the L2 is not the limiter.
    const int most_down = tokens > widest ? kMostCluster : 1;
    mma_units::for_each_wgmma(WgmmaPlan{shape, 1, 1, 0, 1, unit_slots, kind}, most_down, rows, cols,
                              tokens, gpu, give_stages, [&](const WgmmaPlan& plan) {
                                body(plan, cost(plan, rows, cols, tokens, gpu));
                              });
  }
}

}  // namespace

Priced<WgmmaPlan> price_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, Kind kind,
                              int unit_slots) {
  const std::array<int64_t, 5> key{rows, cols, tokens, unit_slots, static_cast<int64_t>(kind)};
  return remembered(key, gpu, [&] {
    return cheapest<WgmmaPlan>(
        [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, kind, unit_slots, body); });
  });
}

std::vector<Priced<WgmmaPlan>> list_wgmma(int64_t rows, int64_t cols, int64_t tokens,
                                          const Gpu& gpu, Kind kind, int unit_slots) {
  return listed<WgmmaPlan>(
      [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, kind, unit_slots, body); });
}

}  // namespace flashsparse::exact_units
