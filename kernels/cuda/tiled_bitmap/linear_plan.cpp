// SPDX-License-Identifier: Apache-2.0
#include "cuda/tiled_bitmap/linear_plan.h"

#include <algorithm>
#include <cmath>

#include "cuda/plan/search.h"
#include "cuda/tiled_bitmap/linear_shared.h"

namespace flashsparse::tiled_bitmap {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The cost of a plan in microseconds, less what all plans of a product share. Fitted to launches
// (benchmarks/gpu/sweep.py): for native values to 8 900 on an H200 and an H100, in
// addition to the memory time; for quantized values to 2 000, and for W8A8 to 3 500 on an H200.
// docs/kernels-bitmap.md compares the choices with the fastest of these. The constants for more
// than 32 tokens come from 3 000 older launches: Hopper GPUs use them for small layers only.
struct Costs {
  // For each step of a block:
  double issue, issue_token, issue_unit;  // per warp of the fullest scheduler, token and row block
  double chain;                           // dependent instructions, per row block of a warp
  double tight, tight_line;               // if a ring holds a single step, and per line of it
  double x_token;                         // per column of warps, if no stage of x is free
  // Of a split-K reduction, and more under stream-K; per part of a row tile; per row block and
  // token.
  double sharing, ragged, part, shared_token;
  // If every SM has a block, so that the kernel that quantizes the next x finds none free.
  double full;
  bool beside_memory = false;  // whether they were fitted in addition to the memory time
};
constexpr Costs kRingCosts{0.17,  8.43e-05, 0.162, 0.165,    0, 0.0349, 0.0315,
                           0.729, 1.18,     0.414, 0.000582, 0, true};
constexpr Costs kWideCosts{0.1,   0.00201, 0.0916, 0.0788, 0,       0.0182,
                           0.033, 0.212,   0.712,  0.293,  0.00213, 0};
constexpr Costs kSpreadCosts{0.0245, 0.00469, 0.000524, 0.642,   0.624, 0,   0.0423,
                             0.642,  0.694,   0.469,    0.00491, 0,     true};
constexpr Costs kCodesCosts{0.15, 0.00728, 0, 0.57, 0.01, 0, 0.0298, 2.33, 1.16, 0.142, 0.00475, 0};
constexpr Costs kRoundedCosts{0.117,  0.00033, 0, 0.286, 0.347,   0,
                              0.0334, 1.62,    0, 0.213, 0.00514, 1.84};

const Costs& costs_of(const LinearPlan& plan) {
  return plan.operands == Operands::kCodes     ? kCodesCosts
         : plan.operands == Operands::kRounded ? kRoundedCosts
         : plan.info().spreads                 ? kSpreadCosts
         : plan.info().tokens > 32             ? kWideCosts
                                               : kRingCosts;
}

// Achieved memory bandwidth over the theoretical one.
constexpr double kMemoryShare = 0.87;

// 16x256 blocks of fewer value lines are decoded into shared memory if a weight has this many.
constexpr double kFewLines = 18;
constexpr int64_t kManyUnits = 10000;
// Steps that a warp's ring has to hold if weights stay in it until they are multiplied.
constexpr double kLeastHeld = 1.3;

// What the producer warp takes of its scheduler, as a share of a warp.
constexpr double kCopies = 0.6;

// Value lines above the average that are provided for: 16x256 blocks differ.
constexpr double kLittleFuller = 2;

// Lines of a block that has a few more than the average.
int fuller_lines(const LinearPlan& plan, double value_lines) {
  const int fuller = static_cast<int>(std::ceil(kHeadLines + value_lines + kLittleFuller));
  return std::min(fuller, most_lines(item_bytes(plan.operands)));
}

// Lines of a ring for a step of such blocks.
double stage_lines(const LinearPlan& plan, double value_lines) {
  const ShapeInfo& info = plan.info();
  return info.row_units * (fuller_lines(plan, value_lines) + lines_behind(info.spreads));
}

// In microseconds, for comparing plans.
double cost(const LinearPlan& plan, int64_t rows, int64_t cols, double value_lines,
            const Gpu& gpu) {
  constexpr int kSchedulers = 4;
  const Costs& of = costs_of(plan);
  const ShapeInfo& info = plan.info();
  const int64_t sets = plan.sets(rows);
  const double steps = static_cast<double>(ceil_div(sets * plan.set_steps(cols), plan.blocks));
  const double fullest =
      std::max<double>(ceil_div(plan.warps(), kSchedulers), plan.warps() / kSchedulers + kCopies);
  const double held = plan.ring_lines / stage_lines(plan, value_lines);
  double total =
      steps *
          (fullest * (of.issue + of.issue_token * info.tokens + of.issue_unit * info.row_units) +
           of.chain * info.row_units +
           (of.tight + of.tight_line * info.row_units * (kHeadLines + value_lines)) / held) +
      std::max(0.0, steps / plan.x_stages - 1) * of.x_token * plan.column_warps * info.tokens;
  if (of.beside_memory && gpu.bus > 0) {
    // A smooth maximum: if both are nearly equal, the shorter adds a little.
    const double bytes =
        static_cast<double>(units(rows, cols)) * (kHeadLines + value_lines) * kLineBytes;
    constexpr double kSharpness = 8;
    total = std::pow(
        std::pow(total, kSharpness) + std::pow(bytes / (kMemoryShare * gpu.bus), kSharpness),
        1 / kSharpness);
  }
  if (plan.blocks == gpu.multiprocessors) total += of.full;
  if (plan.shares_sets(rows)) {
    total += of.sharing + (plan.blocks % sets ? of.ragged : 0) +
             of.part * static_cast<double>(ceil_div(plan.blocks, sets)) +
             of.shared_token * info.tokens * plan.row_warps * info.row_units;
  }
  return total;
}

// Whether a step of dense quantized values fits. Native values that do not fit take a slow path.
bool has_room(const LinearPlan& plan) {
  const int least = plan.operands == Operands::kNative ? 0 : most_lines(1) + lines_behind(false);
  return plan.ring_lines >= plan.info().row_units * least;
}

// Scratch for blocks with a few more lines than the average, and rings of the remaining shared
// memory. False if a step does not fit.
bool give_room(LinearPlan& plan, double value_lines, const Gpu& gpu) {
  plan.scratch_quarters =
      plan.info().spreads ? (fuller_lines(plan, value_lines) - kHeadLines + 3) / 4 : 0;
  plan.ring_lines = 0;
  const int64_t left = gpu.shared_bytes - plan.shared_bytes();
  plan.ring_lines = static_cast<int>(std::max<int64_t>(left, 0) / plan.warps() / kLineBytes);
  const bool keeps = plan.operands == Operands::kNative && !plan.info().spreads;
  return plan.ring_lines >= (keeps ? kLeastHeld : 1) * stage_lines(plan, value_lines);
}

}  // namespace

int64_t LinearPlan::shared_bytes() const {
  return Shared(info().tokens, info().row_units, row_warps, column_warps, scratch_quarters,
                x_stages, ring_lines * kLineBytes, operands)
      .bytes;
}

const char* LinearPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                    const Gpu& gpu) const {
  constexpr int64_t kMostArrivals = 4096, kMostRingLines = 1 << 12;
  if (shape < 0 || shape >= shapes_of(operands).count) return "there is no such shape";
  if (tokens < 1 || tokens > info().tokens) return "the shape is for other numbers of tokens";
  if (row_warps < 1 || column_warps < 1 || row_warps > info().warps ||
      column_warps > info().warps || warps() > info().warps)
    return "the shape has fewer warps";
  if (x_stages < 1 || x_stages > kMostXStages) return "x has 1 to 12 stages";
  if (info().spreads ? scratch_quarters < 1 || scratch_quarters > kMostValueLines / 4
                     : scratch_quarters != 0)
    return "a scratch has 1 to 16 quarters, where units are spread";
  if (ring_lines < 0 || ring_lines > kMostRingLines || !has_room(*this))
    return "codes without zeros would not fit in a ring";
  if (operands == Operands::kRounded && cols > kMostRoundedCols)
    return "int32 sums have room for 131072 columns";
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  const int64_t steps = sets(rows) * set_steps(cols);
  if (blocks < 1 || blocks > steps) return "a block has at least one step";
  if (is_early != 0 && !gpu.has_dependent_launch())
    return "programmatic dependent launch needs compute capability 9.0";
  if (steps * (int64_t{blocks} + 1) > INT32_MAX || units(rows, cols) > INT32_MAX)
    return "there are too many steps";
  if (arrivals(rows) > kMostArrivals) return "too many sets of rows would be shared";
  return nullptr;
}

namespace {

// Calls body(plan, cost) for each candidate launch: shapes of the smallest sufficient token count.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t lines, int64_t tokens, const Gpu& gpu,
                   Operands operands, const Body& body) {
  const double value_lines =
      static_cast<double>(lines) / (unit_rows(rows) * unit_cols(cols)) - kHeadLines;
  int shape_tokens = 64;
  const Shapes shapes = shapes_of(operands);
  for (const ShapeInfo& info : shapes) {
    if (info.tokens >= tokens) shape_tokens = std::min(shape_tokens, info.tokens);
  }
  const bool spreads = operands == Operands::kNative && shape_tokens <= 32 &&
                       value_lines < kFewLines && units(rows, cols) >= kManyUnits;
  const int64_t slots = gpu.multiprocessors;
  const auto compare = [&](LinearPlan plan) {
    if (!give_room(plan, value_lines, gpu)) return;
    const int64_t sets = plan.sets(rows), steps = sets * plan.set_steps(cols);
    // A block per SM; whole row tiles per block; every row tile in equally many parts.
    for (const int64_t blocks : {slots, ceil_div(sets, ceil_div(sets, slots)),
                                 sets * std::max<int64_t>(slots / sets, 1)}) {
      if (blocks > slots) continue;
      plan.blocks = static_cast<int>(std::min(blocks, steps));
      if (!plan.broken_rule(rows, cols, tokens, gpu))
        body(plan, cost(plan, rows, cols, value_lines, gpu));
    }
  };
  for (int shape = 0; shape < shapes.count; ++shape) {
    const ShapeInfo& info = shapes.all[shape];
    if (info.tokens != shape_tokens || info.spreads != spreads) continue;
    for (int row_warps = 1; row_warps <= info.warps; ++row_warps) {
      for (int column_warps = 1; row_warps * column_warps <= info.warps; ++column_warps) {
        for (const int x_stages : {3, 2}) {
          compare({shape, row_warps, column_warps, 0, x_stages, 0, 1, gpu.has_dependent_launch(),
                   operands});
        }
      }
    }
  }
}

}  // namespace

Priced<LinearPlan> price_linear(int64_t rows, int64_t cols, int64_t lines, int64_t tokens,
                                const Gpu& gpu, Operands operands) {
  const std::array<int64_t, 5> key{rows, cols, lines, tokens, static_cast<int64_t>(operands)};
  return remembered(key, gpu, [&] {
    return cheapest<LinearPlan>(
        [&](const auto& body) { for_each_plan(rows, cols, lines, tokens, gpu, operands, body); });
  });
}

std::vector<Priced<LinearPlan>> list_linear(int64_t rows, int64_t cols, int64_t lines,
                                            int64_t tokens, const Gpu& gpu, Operands operands) {
  return listed<LinearPlan>(
      [&](const auto& body) { for_each_plan(rows, cols, lines, tokens, gpu, operands, body); });
}

}  // namespace flashsparse::tiled_bitmap
