// SPDX-License-Identifier: Apache-2.0
#include "cuda/hybrid_units/linear_plan.h"

#include <algorithm>
#include <array>

#include "cuda/hybrid_units/linear_shared.h"
#include "cuda/mma_units/linear_search.h"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/plan/search.h"
#include "cuda/sparse_24/linear_rates.h"

namespace flashsparse::hybrid_units {

int dense_parts(int64_t stream_bytes, int64_t rows, int64_t cols, UnitLayout unit) {
  const int64_t units = unit_rows(rows) * unit_cols(cols), least = unit_bytes(unit, false);
  const int64_t more = units * (unit_bytes(unit, true) - least);
  const int64_t parts = ((stream_bytes - units * least) * kParts + more / 2) / more;
  return static_cast<int>(std::clamp<int64_t>(parts, 0, kParts));
}

int64_t LinearPlan::shared_bytes() const {
  return mma_units::Shared(info().tokens, info().row_units, row_warps, column_warps, x_stages,
                           ring_bytes(unit, info().row_units, weight_stages), x_bytes)
      .bytes;
}

const char* LinearPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                    const Gpu& gpu) const {
  constexpr int kMostRingUnits = 32;  // a bit of a register says the kind of each
  if (const char* const rule = broken_warps(tokens)) return rule;
  if (!is_compiled(info(), unit)) return "values of this type have no such shape";
  if (weight_stages * info().row_units > kMostRingUnits) return "a ring has at most 32 units";
  if (unit_rows(rows) * unit_cols(cols) >= INT32_MAX) return "there are too many units";
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  return broken_steps(rows, cols);
}

namespace {

// The rates of sparse_24, to which copies, x and reductions are equal. The mma of a dense unit are
// twice those of mma.sp, of which half the clocks are loads of operands, and it has twice the
// values to convert. A branch for each unit leaves a warp little to do while it waits for operands,
// so that few warps do not reach memory's speed: fitted to 432 launches of three kinds, five layers
// and 1 to 32 tokens on an H200 (hybrid_units_sweep.csv), where choices are on average 1.9% slower
// than the fastest, and were 10% without it.
mma_units::LinearRates rates_of(UnitLayout unit, int dense, int64_t tokens) {
  mma_units::LinearRates rates = sparse_24::linear_rates(unit);
  const double share = static_cast<double>(dense) / kParts;
  rates.mma_clocks *= 1 + share / 2;
  rates.widening *= 1 + share;
  const double most = tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64;
  const bool native = unit.type == ValueType::kNative;
  rates.unit = (1 + share / 4) * (native ? 0.374 + 0.018 * most : 0.81 + 0.016 * most);
  return rates;
}

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, UnitLayout unit,
                   int dense, const Body& body) {
  mma_units::for_each_linear(
      LinearPlan{0, 1, 1, 0, 0, 1, unit, dense}, kShapes, rates_of(unit, dense, tokens), rows, cols,
      tokens, gpu, [&](const ShapeInfo& info) { return is_compiled(info, unit); }, body);
}

}  // namespace

Priced<LinearPlan> price_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                                UnitLayout unit, int dense) {
  const std::array<int64_t, 6> key{rows,       cols, tokens, static_cast<int64_t>(unit.type),
                                   unit.group, dense};
  return remembered(key, gpu, [&] {
    return cheapest<LinearPlan>(
        [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, unit, dense, body); });
  });
}

std::vector<Priced<LinearPlan>> list_linear(int64_t rows, int64_t cols, int64_t tokens,
                                            const Gpu& gpu, UnitLayout unit, int dense) {
  return listed<LinearPlan>(
      [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, unit, dense, body); });
}

}  // namespace flashsparse::hybrid_units
