// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_bitmap/linear_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "cuda/tiled_bitmap/linear_shared.h"

namespace flashsparse::tiled_bitmap {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What a plan costs, by counting (docs/kernels-bitmap.md), fitted to 480 launches on an H200
// (benchmarks/tiled_bitmap/launches.py): its choices are on average 3% slower than the fastest.
constexpr double kMemory = 30e3, kL2 = 60e3;     // bytes a microsecond and multiprocessor
constexpr double kTurns = 2000;                  // of shared memory, a microsecond
constexpr double kClock = 1.9e3;                 // clocks a microsecond
constexpr double kIssued = 3.0, kByWarp = 0.16;  // instructions a clock, at most; of one warp
// Shares of the time of x that nothing hides: of the first stages, of later ones, and of these
// where there are two large ones.
constexpr double kFirstXBare = 0.5, kXBare = 0.35, kXWaits = 1.5;
constexpr double kTwoStages = 1.02;  // how much longer it takes where x has two stages
constexpr double kSharing = 2.4;     // microseconds that sums between blocks take,
constexpr double kRagged = 1.5;      // and how much more where they begin and end anywhere
constexpr double kSharedToken = 34e-3 * 16 / 128;   // of sums, for a unit of rows and token
constexpr double kRing = 48e3, kIdle = 2;           // bytes on their way, microseconds lost without
constexpr double kFuller = 1.1, kLittleFuller = 2;  // lines of units that the scratch has room for
constexpr double kBegin = 2.0;  // microseconds until a block that had to wait has begun

// What a step of a warp takes of the ring.
double stage_lines(const LinearPlan& plan, double value_lines) {
  return plan.info().row_units * (std::ceil((value_lines + 0.5) / 4) * 4 + 1 + kHeadLines);
}

// Microseconds that a plan should take: a model to compare plans by, not an estimate of time.
double cost(const LinearPlan& plan, int64_t rows, int64_t cols, int64_t lines, int64_t tokens,
            const Gpu& gpu) {
  const ShapeInfo& info = plan.info();
  const double unit_lines = static_cast<double>(lines) / (unit_rows(rows) * unit_cols(cols));
  const double value_lines = unit_lines - kHeadLines;
  const double row_units = static_cast<double>(plan.row_warps) * info.row_units;
  const double units = row_units * plan.column_warps;
  const int64_t sets = plan.sets(rows), steps = sets * plan.set_steps(cols);
  const double turns = static_cast<double>(ceil_div(plan.blocks, gpu.multiprocessors));
  const double mine = static_cast<double>(ceil_div(steps, plan.blocks)) * turns;
  const double weight = mine * units * unit_lines * kLineBytes;
  const double x = mine * plan.column_warps * kUnitCols * 2.0 * info.tokens;
  const double x_turns = 4.0 * info.tokens / info.row_units;
  const double shared = units * (72 + 3.25 * value_lines + unit_lines + x_turns);
  const double tensor = 2.0 * info.tokens + x_turns / 4;  // instructions
  const double issue = units * (335 + 135.0 / info.row_units + 2.3 * value_lines + tensor);
  const double busy =
      std::max({weight / kMemory, (weight + 1.2 * x) / kL2, mine * shared / kTurns,
                mine * issue / (kClock * std::min(kIssued, kByWarp * plan.warps()))});
  const double held = std::floor(plan.ring_lines / stage_lines(plan, value_lines));
  const double ahead =
      std::min<double>(held, kMostAhead) * info.row_units * plan.warps() * unit_lines * kLineBytes;
  const double first_x =
      std::min<double>(x, plan.x_stages * kUnitCols * 2.0 * plan.column_warps * info.tokens);
  const bool waits = plan.x_stages == 2 && plan.column_warps > 1;
  const double bare_x = kFirstXBare * first_x + (waits ? kXWaits : kXBare) * (x - first_x);
  const bool even = plan.blocks % sets == 0;
  const double shares = plan.shares_sets(rows)
                            ? kSharing * (even ? 1 : kRagged) + kSharedToken * tokens * row_units
                            : 0;
  return busy * (plan.x_stages == 2 ? kTwoStages : 1) + bare_x / kL2 +
         kIdle * std::max(0.0, 1 - ahead / kRing) * std::min(1.0, (mine - 1) / 8) + shares +
         kBegin * (turns - 1);
}

// Scratch for units that are a tenth fuller than the average, or else a little; x of three stages
// where there is room, else two; the ring the rest. False where there is too little for two of x
// and the largest units.
bool give_room(LinearPlan& plan, double value_lines, const Gpu& gpu) {
  for (const double fuller : {value_lines * kFuller + 0.5, value_lines + kLittleFuller}) {
    plan.scratch_quarters =
        std::clamp(static_cast<int>(std::ceil(fuller / 4)), 1, kMostValueLines / 4);
    for (plan.x_stages = 3; plan.x_stages >= 2; --plan.x_stages) {
      plan.ring_lines = 0;
      const int64_t left = gpu.shared_bytes - plan.shared_bytes();
      plan.ring_lines = static_cast<int>(std::max<int64_t>(left, 0) / plan.warps() / kLineBytes);
      if (plan.ring_lines < stage_lines(plan, value_lines)) continue;
      if (plan.warp_bytes() >= plan.info().row_units * int64_t{kLeastBytes}) return true;
    }
  }
  return false;
}

}  // namespace

int64_t LinearPlan::warp_bytes() const {
  return Shared(info().tokens, info().row_units, row_warps, column_warps, scratch_quarters,
                x_stages, ring_lines * kLineBytes)
      .warp_weights;
}

int64_t LinearPlan::shared_bytes() const {
  return Shared(info().tokens, info().row_units, row_warps, column_warps, scratch_quarters,
                x_stages, ring_lines * kLineBytes)
      .bytes;
}

const char* LinearPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                    const Gpu& gpu) const {
  constexpr int64_t kMostArrivals = 4096, kMostRingLines = 1 << 12;
  if (shape < 0 || shape >= kShapeCount) return "there is no such shape";
  if (tokens < 1 || tokens > info().tokens) return "the shape is for other numbers of tokens";
  if (row_warps < 1 || column_warps < 1 || row_warps > info().warps ||
      column_warps > info().warps || warps() > info().warps)
    return "the shape has fewer warps";
  if (x_stages < 1 || x_stages > kMostXStages) return "x has 1 to 12 stages";
  if (scratch_quarters < 1 || scratch_quarters > kMostValueLines / 4)
    return "a scratch has 1 to 16 quarters";
  if (ring_lines < 0 || ring_lines > kMostRingLines ||
      warp_bytes() < info().row_units * int64_t{kLeastBytes})
    return "a unit without zeros would not fit in ring and scratch";
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  const int64_t steps = sets(rows) * set_steps(cols);
  if (blocks < 1 || blocks > steps) return "a block has at least one step";
  if (is_early != 0 && !gpu.hopper) return "an early begin is for Hopper GPUs";
  if (steps * (int64_t{blocks} + 1) > INT32_MAX || units(rows, cols) > INT32_MAX)
    return "there are too many steps";
  if (arrivals(rows) > kMostArrivals) return "too many sets of rows would be shared";
  return nullptr;
}

namespace {

LinearPlan find_plan(int64_t rows, int64_t cols, int64_t lines, int64_t tokens, const Gpu& gpu) {
  LinearPlan best{};
  double least = -1;
  const double value_lines =
      static_cast<double>(lines) / (unit_rows(rows) * unit_cols(cols)) - kHeadLines;
  int shape_tokens = 64;
  for (const ShapeInfo& info : kShapes) {
    if (info.tokens >= tokens) shape_tokens = std::min(shape_tokens, info.tokens);
  }
  for (int shape = 0; shape < kShapeCount; ++shape) {
    if (kShapes[shape].tokens != shape_tokens) continue;
    for (int row_warps = 1; row_warps <= kShapes[shape].warps; ++row_warps) {
      for (int column_warps = 1; row_warps * column_warps <= kShapes[shape].warps; ++column_warps) {
        LinearPlan plan{shape, row_warps, column_warps, 1, 0, 0, 1, gpu.hopper};
        if (!give_room(plan, value_lines, gpu)) continue;
        const int64_t sets = plan.sets(rows), steps = sets * plan.set_steps(cols);
        const int64_t slots = gpu.multiprocessors;
        // A block each; whole sets to each; the same number of parts of each set.
        for (const int64_t blocks : {slots, sets, ceil_div(sets, ceil_div(sets, slots)),
                                     sets * std::max<int64_t>(slots / sets, 1)}) {
          plan.blocks = static_cast<int>(std::min(blocks, steps));
          if (plan.broken_rule(rows, cols, tokens, gpu)) continue;
          const double found = cost(plan, rows, cols, lines, tokens, gpu);
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
LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t lines, int64_t tokens, const Gpu& gpu) {
  static std::mutex mutex;
  static std::map<std::array<int64_t, 7>, LinearPlan> found;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [place, is_new] = found.try_emplace(
      {rows, cols, lines, tokens, gpu.multiprocessors, gpu.shared_bytes, gpu.hopper});
  if (is_new) place->second = find_plan(rows, cols, lines, tokens, gpu);
  return place->second;
}

}  // namespace flashsparse::tiled_bitmap
