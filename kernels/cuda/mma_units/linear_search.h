// SPDX-License-Identifier: Apache-2.0
// The launches of a decode kernel that multiplies units by mma, and what they cost by a model whose
// rates are the format's.
//
// Plan is the format's LinearPlan: the numbers of a launch, info() of its compiled shape (tokens,
// row_units, warps), what it derives from them (warps, sets, set_steps, shares_sets, shared_bytes,
// broken_rule), bytes of a unit, and of an element of x.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cuda/shared/gpu.h"
#include "formats/mma_units.h"

namespace flashsparse::mma_units {

struct LinearRates {
  double memory, l2;  // bytes of the weight and of x, per microsecond and SM
  double turns;       // wavefronts of shared memory per microsecond
  double mma_clocks;  // of a sub-core, for the mma of a unit and a token, and its operand's loads
  double widening;    // clocks of a sub-core to decode a unit to operand A, and the share of them
  double widening_bare;  // that is not hidden
  double x_bare;         // share of the time to read x that is not hidden,
  double first_x_bare;   // and of the time until its first stages have arrived
  double sharing;        // microseconds of a split-K reduction, and the factor
  double ragged;         // if the ranges of blocks do not end at row tiles (stream-K)
  double ring, idle;     // bytes in flight that suffice, and microseconds lost with none
  double few;            // microseconds for each warp fewer than kManyWarps
  double part;           // and for each block that shares a row tile: the last one adds up all
  double column_warp;    // and for each warp along the columns, row block and 8 tokens
  double unit = 0;       // that a warp takes for a unit even if memory never keeps it waiting
};

namespace detail {

constexpr double kClock = 1.9e3;    // clocks of a sub-core per microsecond
constexpr double kXTurns = 5.9;     // wavefronts for x of a token, over the row blocks of a warp
constexpr double kTwoStages = 1.1;  // time with two stages of x, over that with three
constexpr double kSharedToken = 34e-3 * 16 / 128;  // of a reduction, per row block and token
constexpr int kManyWarps = 14;
constexpr double kBegin = 2.0;  // microseconds until a block of a later wave has begun

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Gives x three stages if they fit, else two, and the weight the remaining shared memory; false if
// two stages of each do not fit.
template <class Plan>
bool give_stages(Plan& plan, const Gpu& gpu) {
  constexpr int kMostStages = 8;
  for (plan.x_stages = 3; plan.x_stages >= 2; --plan.x_stages) {
    for (plan.weight_stages = kMostStages; plan.weight_stages >= 2; --plan.weight_stages) {
      if (plan.shared_bytes() <= gpu.shared_bytes) return true;
    }
  }
  return false;
}

}  // namespace detail

// In microseconds.
template <class Plan>
double linear_cost(const Plan& plan, const LinearRates& rates, int64_t rows, int64_t cols,
                   int64_t tokens, const Gpu& gpu) {
  using namespace detail;
  const auto& info = plan.info();
  const double row_units = static_cast<double>(plan.row_warps) * info.row_units;
  const double units = row_units * plan.column_warps;
  const int64_t sets = plan.sets(rows), steps = sets * plan.set_steps(cols);
  const double turns = static_cast<double>(ceil_div(plan.blocks, gpu.multiprocessors));
  const double mine = static_cast<double>(ceil_div(steps, plan.blocks)) * turns;
  const double weight = mine * units * plan.unit_bytes();
  const double x_tokens = info.tokens * plan.x_bytes / 2.0;          // as if x had 16 bits
  const double copied = static_cast<double>(tokens) * plan.x_bytes;  // bytes of a column of x
  const double x = mine * plan.column_warps * kUnitCols * copied;
  const double shared = units * (plan.unit_bytes() / 64.0 + kXTurns * x_tokens / info.row_units);
  const double sub_core = static_cast<double>(ceil_div(plan.warps(), 4)) / plan.warps();
  const double mma = units * sub_core * x_tokens * rates.mma_clocks;
  const double widening = units * sub_core * rates.widening;
  const double busy =
      std::max({weight / rates.memory, (weight + 1.2 * x) / rates.l2, mine * shared / rates.turns,
                mine * (mma + widening) / kClock, mine * info.row_units * rates.unit});
  const double ring =
      static_cast<double>(plan.weight_stages) * plan.warps() * info.row_units * plan.unit_bytes();
  const double first_x =
      std::min<double>(x, plan.x_stages * kUnitCols * plan.column_warps * copied);
  const bool even = plan.blocks % sets == 0;
  const double shares = plan.shares_sets(rows)
                            ? rates.sharing * (even ? 1 : rates.ragged) +
                                  kSharedToken * tokens * row_units +
                                  rates.part * plan.blocks / static_cast<double>(sets)
                            : 0;
  return busy * (plan.x_stages == 2 ? kTwoStages : 1) +
         mine * rates.widening_bare * widening / kClock +
         (rates.x_bare * x + rates.first_x_bare * first_x) / rates.l2 +
         rates.idle * std::max(0.0, 1 - ring / rates.ring) + shares + kBegin * (turns - 1) +
         rates.few * std::max(0, kManyWarps - plan.warps()) +
         rates.column_warp * (plan.column_warps - 1) * info.row_units * info.tokens / 8;
}

// Calls body(plan, cost) for each candidate launch: shapes of the smallest sufficient token count,
// of those for which is_compiled(info). `own` has the members that no number is for.
template <class Plan, class Shapes, class IsCompiled, class Body>
void for_each_linear(const Plan& own, const Shapes& shapes, const LinearRates& rates, int64_t rows,
                     int64_t cols, int64_t tokens, const Gpu& gpu, const IsCompiled& is_compiled,
                     const Body& body) {
  using detail::ceil_div;
  int shape_tokens = 64;
  for (const auto& info : shapes) {
    if (info.tokens >= tokens && is_compiled(info))
      shape_tokens = std::min(shape_tokens, info.tokens);
  }
  int shape = -1;
  for (const auto& info : shapes) {
    ++shape;
    if (info.tokens != shape_tokens || !is_compiled(info)) continue;
    for (int row_warps = 1; row_warps <= info.warps; ++row_warps) {
      for (int column_warps = 1; row_warps * column_warps <= info.warps; ++column_warps) {
        Plan plan = own;
        plan.shape = shape;
        plan.row_warps = row_warps;
        plan.column_warps = column_warps;
        if (!detail::give_stages(plan, gpu)) continue;
        const int64_t sets = plan.sets(rows), steps = sets * plan.set_steps(cols);
        const int64_t slots = gpu.multiprocessors;
        // A block per SM; whole row tiles per block; every row tile in equally many parts.
        for (const int64_t blocks : {slots, sets, ceil_div(sets, ceil_div(sets, slots)),
                                     sets * std::max<int64_t>(slots / sets, 1)}) {
          plan.blocks = static_cast<int>(std::min(blocks, steps));
          if (!plan.broken_rule(rows, cols, tokens, gpu))
            body(plan, linear_cost(plan, rates, rows, cols, tokens, gpu));
        }
      }
    }
  }
}

}  // namespace flashsparse::mma_units
