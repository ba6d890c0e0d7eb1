// SPDX-License-Identifier: Apache-2.0
#include "cuda/exact_units/linear_plan.h"

#include <array>

#include "cuda/exact_units/linear_shared.h"
#include "cuda/mma_units/linear_search.h"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/plan/search.h"

namespace flashsparse::exact_units {

namespace {

// The rates of sparse_24's native values, to which this kernel's copies, x and reductions are
// equal. Not measured on a GPU, but counted in its instructions: the mma of a unit are twice those
// of mma.sp, of which half the clocks are loads of operands, and decoding takes 240 instructions.
constexpr mma_units::LinearRates kRates = {35.8e3, 47.5e3, 1110, 11,  240,  0.05, 0.021, 0.092,
                                           0.86,   4.4,    82e3, 2.4, 0.18, 0.56, 0.026};
// Units of 2:4 have the mma of sparse_24, and half as many weights to decode.
constexpr mma_units::LinearRates kRates24 = {35.8e3, 47.5e3, 1110, 7.3, 120,  0.05, 0.021, 0.092,
                                             0.86,   4.4,    82e3, 2.4, 0.18, 0.56, 0.026};

}  // namespace

int64_t LinearPlan::shared_bytes() const {
  return mma_units::Shared(info().tokens, info().row_units, row_warps, column_warps, x_stages,
                           ring_bytes(kind, info().row_units, unit_slots, weight_stages), x_bytes)
      .bytes;
}

const char* LinearPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                    const Gpu& gpu) const {
  if (const char* const rule = broken_warps(tokens)) return rule;
  if (!is_compiled(info(), kind)) return "units of this kind have no such shape";
  if (!is_slots(unit_slots)) return "a unit has 4, 8 or 16 slots";
  if (unit_rows(rows) * unit_cols(cols) > INT32_MAX) return "there are too many units";
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  return broken_steps(rows, cols);
}

namespace {

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, Kind kind,
                   int unit_slots, const Body& body) {
  mma_units::for_each_linear(
      LinearPlan{0, 1, 1, 0, 0, 1, unit_slots, kind}, kShapes,
      kind == Kind::k24 ? kRates24 : kRates, rows, cols, tokens, gpu,
      [kind](const ShapeInfo& shape) { return is_compiled(shape, kind); }, body);
}

}  // namespace

Priced<LinearPlan> price_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                                Kind kind, int unit_slots) {
  const std::array<int64_t, 5> key{rows, cols, tokens, unit_slots, static_cast<int64_t>(kind)};
  return remembered(key, gpu, [&] {
    return cheapest<LinearPlan>(
        [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, kind, unit_slots, body); });
  });
}

std::vector<Priced<LinearPlan>> list_linear(int64_t rows, int64_t cols, int64_t tokens,
                                            const Gpu& gpu, Kind kind, int unit_slots) {
  return listed<LinearPlan>(
      [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, kind, unit_slots, body); });
}

}  // namespace flashsparse::exact_units
