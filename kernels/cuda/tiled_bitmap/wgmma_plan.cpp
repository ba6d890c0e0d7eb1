// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_bitmap/wgmma_plan.h"

#include <algorithm>
#include <cmath>

#include "cuda/mma_units/wgmma_search.h"
#include "cuda/plan/search.h"

namespace flashsparse::tiled_bitmap {

namespace {

using mma_units::kMostCluster;
using mma_units::kMostXStages;
using mma_units::kPanelBytes;
using mma_units::wgmma_slots;

// Of an H200. Memory bandwidth, clock and cluster overhead are those fitted for sparse_24
// (cuda/sparse_24/wgmma_plan.cpp): bytes per microsecond and SM, clocks per microsecond, and the
// time of shared memory over the budget at the head of wgmma.cuh.
constexpr double kMemory = 33.3e3, kClock = 1.755e3, kShared = 1.07;
constexpr double kRound = 1.7;     // microseconds until a cluster of a later wave has begun
constexpr double kCluster = 0.01;  // share of the time, for each doubling of the cluster
constexpr double kLatency = 1.0;   // of a copy, under load
constexpr double kL2Bytes = 25e6;  // of x that stay in the L2 while the weight streams through
// Wavefronts of shared memory per 16x256 block, besides the copy of its lines: counted.
constexpr double unit_turns(Operands operands) { return operands == Operands::kNative ? 101 : 69; }
// Fitted to 2,340 launches of this kernel for 32 to 256 tokens, with 50% to 90% zeros
// (benchmarks/gpu/steps.py). Clocks to decode a panel, per warpgroup and per token; three
// warpgroups hide more of them.
constexpr double kGroupClocks = 272, kTokenClocks = 1.82, kThreeGroups = 0.94;
// A panel of W8A8 has twice the columns, for which it takes 11/14 of the instructions: not
// measured.
constexpr double decoded(Operands operands) { return operands == Operands::kRounded ? 1.6 : 1; }
constexpr double kL2 = 69.5e3;     // bytes per microsecond and SM
constexpr double kLaunch = 2.4;    // until the first x and weight have arrived
constexpr double kTile = 0.6;      // prologue and epilogue of a tile
constexpr double kSharing = 5.1;   // of a reduction between clusters,
constexpr double kRagged = 3.0;    // and more under stream-K
constexpr double kGiving = 2.7;    // of a reduction between the blocks of a cluster
constexpr double kSums = 0.6;      // share of the L2 time of partial sums that is not hidden
constexpr double kJoining = 0.67;  // the same if the last cluster adds up those of all

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

double wgmma_cost(const WgmmaPlan& plan, int64_t rows, int64_t cols, int64_t tokens, int64_t lines,
                  const Gpu& gpu, Operands operands) {
  const int step_panels = wgmma_panels(operands);
  const double groups = plan.info().groups, width = plan.info().tokens;
  const double unit_lines = static_cast<double>(lines) / static_cast<double>(units(rows, cols));
  const int64_t tiles = plan.tiles(rows, tokens), slots = wgmma_slots(plan.cluster(), gpu);
  const double rounds = static_cast<double>(ceil_div(plan.clusters, std::max<int64_t>(slots, 1)));
  const double panels =
      static_cast<double>(ceil_div(tiles * plan.tile_steps(cols), plan.clusters) * step_panels);
  // Per panel: bytes of the block's weight and of x, clocks of shared memory and of decoding.
  const double block_units = static_cast<double>(plan.warps()) / step_panels;
  const double written = std::min<double>(width, static_cast<double>(tokens));
  const double weight = block_units * unit_lines * kLineBytes, x = written * kPanelBytes;
  const double shared = groups * width + width + block_units * (unit_lines + unit_turns(operands));
  const double decoding = groups * (decoded(operands) * kGroupClocks + kTokenClocks * width) *
                          (groups > 2 ? kThreeGroups : 1);
  const double clocks = std::max(kShared * shared, decoding) / kClock;
  const double token_tiles = static_cast<double>(ceil_div(tokens, plan.info().tokens));
  const bool shares = plan.shares_tiles(rows, tokens), even = plan.clusters % tiles == 0;
  // Under stream-K, clusters do not read the same x at the same time.
  const double all_x = x_bytes(operands) * static_cast<double>(cols) * static_cast<double>(tokens);
  const bool strays = shares && !even && token_tiles > 1 && all_x > kL2Bytes;
  const double memory = strays ? weight + x : weight / token_tiles;
  // 16x256 blocks in flight while one is decoded.
  const double room = std::floor(plan.ring_lines / (unit_lines + 3));
  const double ahead = std::max(0.5, std::min<double>(room, kUnitsAhead) - 1);
  const double waiting = kLatency / ahead / step_panels;
  const double busy = (1 + kCluster * std::log2(plan.cluster())) *
                      std::max({memory / kMemory, (weight + x / plan.down) / kL2, clocks, waiting});
  const double own_tiles = std::max(1.0, static_cast<double>(tiles) / plan.clusters);
  // Of a tile that several clusters share: bytes of the block's partial sums, and microseconds.
  const double given = groups * mma_units::kGroupRows * written * sizeof(float);
  double sums = 0;
  if (plan.depth > 1) sums = kGiving + kSums * 2 * given / kL2;
  if (shares) {
    const double parts = 1 + std::max(1.0, static_cast<double>(plan.clusters) / tiles);
    sums = kSharing + (even ? 0 : kRagged) + kJoining * (1 + parts) * given / kL2;
  }
  return kLaunch + rounds * (panels * busy + own_tiles * kTile + sums) + kRound * (rounds - 1);
}

const char* WgmmaPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                   const Gpu& gpu) const {
  if (const char* const rule = broken_cluster(gpu)) return rule;
  if (ring_lines < kLeastRingLines || ring_lines > kMostRingLines)
    return "a warp's ring has 72 to 288 lines";
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  return broken_tiles(rows, cols, tokens);
}

namespace {

// Rings for two 16x256 blocks if three stages of x fit as well; what remains goes to x, up to
// 128 KB, and then to the rings.
bool divide_shared(WgmmaPlan& plan, int64_t unit_lines, const Gpu& gpu) {
  constexpr int64_t kEnoughX = 128 << 10;
  plan.stages = plan.ring_lines = 0;
  const int64_t stage = mma_units::wgmma_stage_bytes(plan.info().tokens);
  const int64_t line = plan.warps() * kLineBytes, room = gpu.shared_bytes - plan.shared_bytes();
  const int64_t wanted = std::max<int64_t>(kLeastRingLines, 2 * (unit_lines + 5));
  const int64_t least = std::max<int64_t>((room - kLeastRingLines * line) / stage, 0);
  const int64_t stages =
      std::max<int64_t>((room - wanted * line) / stage, std::min<int64_t>(least, 3));
  plan.stages = static_cast<int>(std::min({stages, kEnoughX / stage, int64_t{kMostXStages}}));
  const int64_t lines = (room - plan.stages * stage) / line;
  plan.ring_lines = static_cast<int>(std::min<int64_t>(lines, kMostRingLines));
  return plan.stages >= 2 && plan.ring_lines >= kLeastRingLines;
}

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t tokens, int64_t unit_lines, const Gpu& gpu,
                   Operands operands, const Body& body) {
  const int64_t lines = unit_lines * units(rows, cols);
  for (int shape = 0; shape < kWgmmaShapeCount; ++shape) {
    mma_units::for_each_wgmma(
        WgmmaPlan{shape, 1, 1, 0, 1, 0}, kMostCluster, rows, cols, tokens, gpu,
        [&](WgmmaPlan& plan) { return divide_shared(plan, unit_lines, gpu); },
        [&](const WgmmaPlan& plan) {
          body(plan, wgmma_cost(plan, rows, cols, tokens, lines, gpu, operands));
        });
  }
}

}  // namespace

Priced<WgmmaPlan> price_wgmma(int64_t rows, int64_t cols, int64_t tokens, int64_t lines,
                              const Gpu& gpu, Operands operands) {
  const int64_t unit_lines = ceil_div(lines, units(rows, cols));
  const std::array<int64_t, 5> key{rows, cols, tokens, unit_lines, static_cast<int64_t>(operands)};
  return remembered(key, gpu, [&] {
    return cheapest<WgmmaPlan>([&](const auto& body) {
      for_each_plan(rows, cols, tokens, unit_lines, gpu, operands, body);
    });
  });
}

std::vector<Priced<WgmmaPlan>> list_wgmma(int64_t rows, int64_t cols, int64_t tokens, int64_t lines,
                                          const Gpu& gpu, Operands operands) {
  return listed<WgmmaPlan>([&](const auto& body) {
    for_each_plan(rows, cols, tokens, ceil_div(lines, units(rows, cols)), gpu, operands, body);
  });
}

}  // namespace flashsparse::tiled_bitmap
