// SPDX-License-Identifier: Apache-2.0
#include "cuda/exact_units/linear_plan.h"

#include <array>

#include "cuda/exact_units/linear_shared.h"
#include "cuda/mma_units/linear_search.h"
#include "cuda/mma_units/linear_shared.h"

namespace flashsparse::exact_units {

namespace {

// The rates of sparse_24's native values, to which this kernel's copies, x and reductions are
// equal. Not measured on a GPU, but counted in its instructions: the mma of a unit are twice those
// of mma.sp, of which half the clocks are loads of operands, and decoding takes 240 instructions.
constexpr mma_units::LinearRates kRates = {35.8e3, 47.5e3, 1110, 11,  240,  0.05, 0.021, 0.092,
                                           0.86,   4.4,    82e3, 2.4, 0.18, 0.56, 0.026};

}  // namespace

int64_t LinearPlan::shared_bytes() const {
  return mma_units::Shared(info().tokens, info().row_units, row_warps, column_warps, x_stages,
                           ring_bytes(info().row_units, unit_slots, weight_stages), x_bytes)
      .bytes;
}

const char* LinearPlan::broken_rule(int64_t rows, int64_t cols, int64_t tokens,
                                    const Gpu& gpu) const {
  constexpr int64_t kMostArrivals = 4096, kMostStages = 64;
  if (shape < 0 || shape >= kShapeCount) return "there is no such shape";
  if (!is_slots(unit_slots)) return "a unit has 4, 8 or 16 slots";
  if (tokens < 1 || tokens > info().tokens) return "the shape is for other numbers of tokens";
  if (row_warps < 1 || column_warps < 1 || row_warps > info().warps ||
      column_warps > info().warps || warps() > info().warps)
    return "the shape has fewer warps";
  if (weight_stages < 1 || x_stages < 1 || weight_stages > kMostStages || x_stages > kMostStages)
    return "a ring has at least one stage";
  if (unit_rows(rows) * unit_cols(cols) > INT32_MAX) return "there are too many units";
  if (shared_bytes() > gpu.shared_bytes) return "there is too little shared memory";
  const int64_t steps = sets(rows) * set_steps(cols);
  if (blocks < 1 || blocks > steps) return "a block has at least one step";
  if (steps * (int64_t{blocks} + 1) > INT32_MAX) return "there are too many steps";
  if (arrivals(rows) > kMostArrivals) return "too many sets of rows would be shared";
  return nullptr;
}

namespace {

// Calls body(plan, cost) for each candidate launch.
template <class Body>
void for_each_plan(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, int unit_slots,
                   const Body& body) {
  mma_units::for_each_linear(
      LinearPlan{0, 1, 1, 0, 0, 1, unit_slots}, kShapes, kRates, rows, cols, tokens, gpu,
      [](const ShapeInfo&) { return true; }, body);
}

}  // namespace

Priced<LinearPlan> price_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                                int unit_slots) {
  const std::array<int64_t, 6> key{rows,      cols, tokens, gpu.multiprocessors, gpu.shared_bytes,
                                   unit_slots};
  return remembered(key, [&] {
    return cheapest<LinearPlan>(
        [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, unit_slots, body); });
  });
}

std::vector<Priced<LinearPlan>> list_linear(int64_t rows, int64_t cols, int64_t tokens,
                                            const Gpu& gpu, int unit_slots) {
  return listed<LinearPlan>(
      [&](const auto& body) { for_each_plan(rows, cols, tokens, gpu, unit_slots, body); });
}

}  // namespace flashsparse::exact_units
