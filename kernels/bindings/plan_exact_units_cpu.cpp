// SPDX-License-Identifier: Apache-2.0
#include "bindings/exact_units.h"
#include "bindings/plan.h"
#include "cuda/exact_units/kernel_choice.h"

namespace flashsparse::planning {
namespace {

using exact_units::LinearPlan;

// From the bytes of the weight; those of a weight that is not packed yet say nothing.
int unit_slots(const Product& product) {
  const int64_t units =
      exact_units::unit_rows(product.rows) * exact_units::unit_cols(product.cols);
  const int64_t beside = product.nbytes / units - exact_units::kUnitBytes;
  return beside >= 64 ? 16 : beside >= 32 ? 8 : 4;
}

Kernel choose(const Product& product, const Gpu&, const TokenLimits& limits) {
  return exact_units::choose_kernel(product.tokens, limits);
}

// That of sparse_24's native values: not fitted to this kernel.
Fit fit(int64_t) { return {1.5, 0, 1.03}; }

Launch plan_sparse(const Product& product, const Gpu& gpu) {
  return planned(product, gpu, exact_units::max_tokens(gpu), fit, [&](int64_t tokens) {
    return exact_units::price_linear(product.rows, product.cols, tokens, gpu, unit_slots(product));
  });
}

std::vector<Launch> list_sparse(const Product& product, const Gpu& gpu) {
  return compared(product, gpu, exact_units::max_tokens(gpu), fit, [&](int64_t tokens) {
    return exact_units::list_linear(product.rows, product.cols, tokens, gpu, unit_slots(product));
  });
}

Shapes shapes() {
  return shapes_of("tokens row_units warps", exact_units::kShapes,
                   [](const exact_units::ShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.row_units, info.warps};
                   });
}

}  // namespace

Format exact_units_planners() {
  return {"exact_units",
          choose,
          {{"exact_units.sparse", LaunchNumbers<LinearPlan>::kFields, shapes, plan_sparse,
            list_sparse}}};
}

}  // namespace flashsparse::planning
