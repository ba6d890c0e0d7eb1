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

constexpr double kClock = 1.69e3;  // clocks per microsecond

// Memory and the L2 in bytes per microsecond and SM, times in microseconds.
struct Costs {
  double memory, most;  // of all SMs, of few
  double l2;
  double shared;               // time of shared memory, over that counted
  double panel, group, token;  // clocks of a warpgroup; for each of the block; for each token
  double launch, tile, round;
  double sharing, ragged, giving, sums;
  double fewer;    // power of the memory that fewer blocks have, each
  double cluster;  // share of the time, for each doubling of the cluster
};

// Fitted to 859 launches for 64 to 1,024 tokens after another kernel on an H200
// (exact_units_many_sweep.csv): what it selects of these is on average 2.7% slower than the
// fastest, and 4% off its time.
constexpr Costs kDenseCosts = {48.3e3, 125e3, 50.9e3, 0.957, 539,  62.1, 2.26,  0.929,
                               3.13,   0.23,  0.29,   4.2,   0.08, 1.38, 0.077, 0.0014};
// Those of sparse_24's kernel, when it had a ring of weights, for 16-bit x; but for its clocks
// between two groups of wgmma, counted in instructions, and `fewer`, by lossless.csv of an H100.
constexpr Costs k24Costs = {30e3, 46e3, 48e3, 0.95, 320, 76,   2,    1.8,
                            1.45, 1.7,  1.6,  1.5,  0.6, 0.45, 0.57, 0.01};
// Where clusters share tiles unevenly, they do not read the same x at the same time, nor those of
// the same rows the same weight: what the L2 cannot hold is read from memory again.
constexpr double kL2Bytes = 45e6;
constexpr int64_t kRingShared = 225 << 10;

// In microseconds.
double cost(const WgmmaPlan& plan, int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) {
  const bool is_dense = plan.kind == Kind::kDense;
  const Costs& c = is_dense ? kDenseCosts : k24Costs;
  const double groups = plan.info().groups, width = plan.info().tokens;
  const int64_t tiles = plan.tiles(rows, tokens), slots = wgmma_slots(plan.cluster(), gpu);
  const double rounds = static_cast<double>(ceil_div(plan.clusters, std::max<int64_t>(slots, 1)));
  const double panels =
      static_cast<double>(ceil_div(tiles * plan.tile_steps(cols), plan.clusters) * kPanels);
  // Per panel: bytes of the block's weight and of x, clocks of shared memory and of a warpgroup.
  const double written = std::min<double>(width, static_cast<double>(tokens));
  const double weight = groups * 4 * plan.unit_bytes() / kPanels, x = written * kPanelBytes;
  const double shared = 2 * groups * width + width + weight / 128 * 3;
  const double alone = c.token * width + c.panel + c.group * groups;
  const double token_tiles = static_cast<double>(ceil_div(tokens, plan.info().tokens));
  const bool shares = plan.shares_tiles(rows, tokens), even = plan.clusters % tiles == 0;
  const double bytes = static_cast<double>(cols) *
                       (static_cast<double>(rows) * 1.5 + static_cast<double>(tokens) * 2);
  const bool strays = is_dense && shares && !even && token_tiles > 1 && bytes > kL2Bytes;
  const double share = static_cast<double>(gpu.multiprocessors) / plan.blocks();
  const double rate = std::min(c.most, c.memory * std::pow(std::max(1.0, share), c.fewer));
  const double busy =
      (1 + c.cluster * std::log2(plan.cluster())) *
      std::max({(strays ? weight + x : weight / token_tiles) / rate,
                (weight + x / plan.down) / c.l2, c.shared * shared / kClock, alone / kClock});
  const double own_tiles = std::max(1.0, static_cast<double>(tiles) / plan.clusters);
  const double given = groups * kGroupRows * written * sizeof(float);
  double sums = plan.depth > 1 ? c.giving + c.sums * 2 * given / c.l2 : 0;
  if (shares) {
    const double parts = 1 + std::max(1.0, static_cast<double>(plan.clusters) / tiles);
    sums = c.sharing + (even ? 0 : c.ragged) + c.sums * (1 + parts) * given / c.l2;
  }
  return c.launch + rounds * (panels * busy + own_tiles * c.tile + sums) + c.round * (rounds - 1);
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
  const auto& [most_tokens, groups] = info();
  if (!wgmma_is_for(most_tokens, groups, kind)) return "dense units have no such shape";
  if (kind == Kind::kDense && stages < 2 * mma_units::wgmma_stage_panels(most_tokens))
    return "x has two stages at least, of two panels up to 128 tokens";
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
    // For one tile of tokens the L2 does not limit 2:4, nor dense units of up to 32.
    const bool limits = kind == Kind::kDense ? tokens > 32 : tokens > widest;
    const int most_down = limits ? kMostCluster : 1;
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
