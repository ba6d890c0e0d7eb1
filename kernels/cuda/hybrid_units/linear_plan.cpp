// SPDX-License-Identifier: Apache-2.0
#include "cuda/hybrid_units/linear_plan.h"

#include <algorithm>
#include <array>

#include "cuda/hybrid_units/linear_shared.h"
#include "cuda/mma_units/linear_search.h"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/plan/search.h"

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

// Rates of a value type. A warp takes unit.least + unit.token * tokens for a unit, with the tokens
// of the smallest sufficient shape. All dense, a weight takes so much more: 1 + more.unit times the
// time of a unit, and likewise.
struct Rates {
  mma_units::LinearRates linear;
  struct {
    double least, token;
  } unit;
  struct {
    double unit, mma, widening;
  } more;
};

// Fitted to 4,480 launches of four kinds, seven layers and 1 to 32 tokens after another kernel on
// an H200 (hybrid_units_sweep.csv): of those measured, choices are on average 0.4% (native values),
// 1.7% (8 bits) and 0.7% (4 bits) slower than the fastest, and at most 10%.
constexpr Rates kNative = {
    {31.5e3, 43.8e3, 1300, 8.1, 0, 0, 0, 0, 0.673, 5.13, 1, 0, 0.397, 0.528, 0},
    {0.305, 0.0149},
    {0.0135, 10, 0}};
constexpr Rates kEightBits = {
    {27.6e3, 70.7e3, 1070, 10.4, 0, 0, 0.605, 0.34, 2.42, 1.6, 1, 0, 0.455, 0.397, 0.251},
    {0.719, 0.00128},
    {0.608, 8.15, 0}};
constexpr Rates kFourBits = {
    {34.9e3, 55.2e3, 1010, 15.3, 206, 0.973, 0.197, 0, 0.999, 3.04, 1, 0, 0.206, 0.269, 0},
    {0.524, 0.0291},
    {0.149, 0.865, 0.4}};

mma_units::LinearRates rates_of(UnitLayout unit, int dense, int64_t tokens) {
  const Rates& own = unit.type == ValueType::kNative ? kNative
                     : bits_of(unit.type) == 8       ? kEightBits
                                                     : kFourBits;
  mma_units::LinearRates rates = own.linear;
  const double share = static_cast<double>(dense) / kParts;
  rates.mma_clocks *= 1 + own.more.mma * share;
  rates.widening *= 1 + own.more.widening * share;
  const double most = tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64;
  rates.unit = (1 + own.more.unit * share) * (own.unit.least + own.unit.token * most);
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
