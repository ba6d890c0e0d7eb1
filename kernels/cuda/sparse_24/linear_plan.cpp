// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/linear_plan.h"

#include <algorithm>

#include "cuda/mma_units/linear_shared.h"
#include "cuda/sparse_24/linear_shared.h"

namespace flashsparse::sparse_24 {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The cost of a plan, fitted to 9,920 launches of 24 layers with 1, 8 and 16 tokens on an H200,
// after another kernel (sweep_24_few.csv): of those measured its choices are on average 1.4%
// slower than the fastest for native values, 3.1% for 8 bits and 4.0% for int4, and 3 to 6% for
// layers that it was not fitted to. The ratios are much the same on other GPUs. W8A8 has the rates
// of quantized values times 16-bit x, with half the bytes of x and half the MMAs: not fitted.
struct Rates {
  double memory, l2;  // bytes of the weight and of x, per microsecond and SM
  double turns;       // wavefronts of shared memory per microsecond
  double mma_clocks;  // of a sub-core, for mma.sp of 8 tokens and the loads of its operands
  double widening;    // clocks of a sub-core to dequantize a 16x256 block of 4-bit values, and the
  double widening_bare;  // share of them that is not hidden. Of 8 bits none was measurable
  double x_bare;         // share of the time to read x that is not hidden,
  double first_x_bare;   // and of the time until its first stages have arrived
  double sharing;        // microseconds of a split-K reduction, and the factor
  double ragged;         // if the ranges of blocks do not end at row tiles (stream-K)
  double ring, idle;     // bytes in flight that suffice, and microseconds lost with none
  double few;            // microseconds for each warp fewer than kManyWarps
  double part;           // and for each block that shares a row tile: the last one adds up all
  double column_warp;    // and for each warp along the columns, row block and 8 tokens
};
constexpr Rates kNativeRates = {35.8e3, 47.5e3, 1110, 7.2, 0,    0,    0.021, 0.092,
                                0.86,   4.4,    82e3, 2.4, 0.18, 0.56, 0.026};
constexpr Rates kEightBitRates = {34.6e3, 49.3e3, 1036,  31.3, 0,    0,    0.115, 0.0099,
                                  1.11,   1.84,   535e3, 0.78, 0.23, 0.27, 0.027};
constexpr Rates kInt4Rates = {32.4e3, 52.4e3, 1070,  10.2, 95,   0.18, 0.21, 0.0099,
                              0.92,   1.89,   370e3, 1.08, 0.22, 0.27, 0.016};

const Rates& rates_of(UnitLayout unit) {
  return unit.type == ValueType::kNative ? kNativeRates
         : bits_of(unit.type) == 4       ? kInt4Rates
                                         : kEightBitRates;
}

constexpr double kClock = 1.9e3;    // clocks of a sub-core per microsecond
constexpr double kXTurns = 5.9;     // wavefronts for x of a token, over the row blocks of a warp
constexpr double kTwoStages = 1.1;  // time with two stages of x, over that with three
constexpr double kSharedToken = 34e-3 * 16 / 128;  // of a reduction, per row block and token
constexpr int kManyWarps = 14;
constexpr double kBegin = 2.0;  // microseconds until a block of a later wave has begun

// In microseconds.
double cost(const LinearPlan& plan, int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) {
  const ShapeInfo& info = plan.info();
  const Rates& rates = rates_of(plan.unit);
  const double row_units = static_cast<double>(plan.row_warps) * info.row_units;
  const double units = row_units * plan.column_warps;
  const int64_t sets = plan.sets(rows), steps = sets * plan.set_steps(cols);
  const double turns = static_cast<double>(ceil_div(plan.blocks, gpu.multiprocessors));
  const double mine = static_cast<double>(ceil_div(steps, plan.blocks)) * turns;
  const double weight = mine * units * plan.unit.bytes();
  const double x_tokens = info.tokens * plan.x_bytes / 2.0;          // as if x had 16 bits
  const double copied = static_cast<double>(tokens) * plan.x_bytes;  // bytes of a column of x
  const double x = mine * plan.column_warps * kUnitCols * copied;
  const double shared = units * (plan.unit.bytes() / 64.0 + kXTurns * x_tokens / info.row_units);
  const double sub_core = static_cast<double>(ceil_div(plan.warps(), 4)) / plan.warps();
  const double mma = units * sub_core * x_tokens * rates.mma_clocks;
  const double widening = units * sub_core * rates.widening;
  const double busy = std::max({weight / rates.memory, (weight + 1.2 * x) / rates.l2,
                                mine * shared / rates.turns, mine * (mma + widening) / kClock});
  const double ring =
      static_cast<double>(plan.weight_stages) * plan.warps() * info.row_units * plan.unit.bytes();
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

// Gives x three stages if they fit, else two, and the weight the remaining shared memory; false if
// two stages of each do not fit.
bool give_stages(LinearPlan& plan, const Gpu& gpu) {
  constexpr int kMostStages = 8;
  for (plan.x_stages = 3; plan.x_stages >= 2; --plan.x_stages) {
    for (plan.weight_stages = kMostStages; plan.weight_stages >= 2; --plan.weight_stages) {
      if (plan.shared_bytes() <= gpu.shared_bytes) return true;
    }
  }
  return false;
}

}  // namespace

int64_t LinearPlan::shared_bytes() const {
  return mma_units::Shared(info().tokens, info().row_units, row_warps, column_warps, x_stages,
                           ring_bytes(unit, info().row_units, weight_stages), x_bytes)
      .bytes;
}

const char* LinearPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                    const Gpu& gpu) const {
  constexpr int64_t kMostArrivals = 4096, kMostStages = 64;
  constexpr int64_t kMostCols = 1 << 27;  // byte offsets in a row of 16x256 blocks have 32 bits
  if (shape < 0 || shape >= kShapeCount) return "there is no such shape";
  if (x_bytes != 2 && (x_bytes != 1 || unit.group != 0 ||
                       (unit.type != ValueType::kFp8 && unit.type != ValueType::kInt8)))
    return "x is 16 bits, or codes of 8 bits where the values are, with scales of rows";
  if (x_bytes == 1 && unit.type == ValueType::kFp8 && !gpu.has_fp8_mma())
    return "the GPU does not multiply fp8 by mma: it needs compute capability 8.9 or 12.0";
  if (x_bytes == 1 && unit.type == ValueType::kInt8 && cols > kMostInt8Cols)
    return "int32 has room for the sums of 262144 columns of int8";
  if (!is_compiled(info(), unit, x_bytes)) return "values of this type have no such shape";
  if (tokens < 1 || tokens > info().tokens) return "the shape is for other numbers of tokens";
  if (row_warps < 1 || column_warps < 1 || row_warps > info().warps ||
      column_warps > info().warps || warps() > info().warps)
    return "the shape has fewer warps";
  if (weight_stages < 1 || x_stages < 1 || weight_stages > kMostStages || x_stages > kMostStages)
    return "a ring has at least one stage";
  if (cols > kMostCols) return "there are too many columns";
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  const int64_t steps = sets(rows) * set_steps(cols);
  if (blocks < 1 || blocks > steps) return "a block has at least one step";
  if (steps * (int64_t{blocks} + 1) > INT32_MAX) return "there are too many steps";
  if (arrivals(rows) > kMostArrivals) return "too many sets of rows would be shared";
  return nullptr;
}

namespace {

// Calls body(plan, cost) for each candidate launch: shapes of the smallest sufficient token count.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, UnitLayout unit,
                   int x_bytes, const Body& body) {
  int shape_tokens = 64;
  for (const ShapeInfo& info : kShapes) {
    if (info.tokens >= tokens && is_compiled(info, unit, x_bytes))
      shape_tokens = std::min(shape_tokens, info.tokens);
  }
  for (int shape = 0; shape < kShapeCount; ++shape) {
    if (kShapes[shape].tokens != shape_tokens || !is_compiled(kShapes[shape], unit, x_bytes))
      continue;
    for (int row_warps = 1; row_warps <= kShapes[shape].warps; ++row_warps) {
      for (int column_warps = 1; row_warps * column_warps <= kShapes[shape].warps; ++column_warps) {
        LinearPlan plan{shape, row_warps, column_warps, 0, 0, 1, unit, x_bytes};
        if (!give_stages(plan, gpu)) continue;
        const int64_t sets = plan.sets(rows), steps = sets * plan.set_steps(cols);
        const int64_t slots = gpu.multiprocessors;
        // A block per SM; whole row tiles per block; every row tile in equally many parts.
        for (const int64_t blocks : {slots, sets, ceil_div(sets, ceil_div(sets, slots)),
                                     sets * std::max<int64_t>(slots / sets, 1)}) {
          plan.blocks = static_cast<int>(std::min(blocks, steps));
          if (!plan.broken_rule(rows, cols, tokens, gpu))
            body(plan, cost(plan, rows, cols, tokens, gpu));
        }
      }
    }
  }
}

}  // namespace

Priced<LinearPlan> price_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                                UnitLayout unit, int x_bytes) {
  const std::array<int64_t, 8> key{rows,
                                   cols,
                                   tokens,
                                   gpu.multiprocessors,
                                   gpu.shared_bytes,
                                   static_cast<int64_t>(unit.type),
                                   unit.group,
                                   x_bytes};
  return remembered(key, [&] {
    return cheapest<LinearPlan>(
        [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, unit, x_bytes, body); });
  });
}

std::vector<Priced<LinearPlan>> list_linear(int64_t rows, int64_t cols, int64_t tokens,
                                            const Gpu& gpu, UnitLayout unit, int x_bytes) {
  return listed<LinearPlan>(
      [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, unit, x_bytes, body); });
}

}  // namespace flashsparse::sparse_24
