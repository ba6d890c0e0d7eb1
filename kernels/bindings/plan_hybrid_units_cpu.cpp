// SPDX-License-Identifier: Apache-2.0
#include "bindings/hybrid_units.h"
#include "bindings/plan.h"
#include "bindings/sparse_24.h"
#include "cuda/hybrid_units/kernel_choice.h"

namespace flashsparse::planning {
namespace {

using hybrid_units::LinearPlan;
using hybrid_units::UnitLayout;

UnitLayout layout_of(const Product& product) {
  return sparse_24_layout(product.values, product.group);
}

// From the bytes of the weight, of which offsets and scales of rows are not the stream's.
int dense_parts(const Product& product) {
  const UnitLayout layout = layout_of(product);
  const int64_t units =
      hybrid_units::unit_rows(product.rows) * hybrid_units::unit_cols(product.cols);
  const int64_t beside = 4 * (units + 1 + (layout.has_row_scales() ? product.rows : 0));
  return hybrid_units::dense_parts(product.nbytes - beside, product.rows, product.cols, layout);
}

Kernel choose(const Product& product, const Gpu&, const TokenLimits& limits) {
  return hybrid_units::choose_kernel(product.tokens, limits);
}

// Those of sparse_24's decode kernel: not measured.
auto fit(const Product& product) {
  return
      [&](int64_t) { return product.values == "native" ? Fit{1.5, 0, 1.03} : Fit{1.4, 0, 1.08}; };
}

int64_t most_tokens(const Product& product, const Gpu& gpu) {
  return hybrid_units::max_tokens(gpu, layout_of(product));
}

Launch plan(const Product& product, const Gpu& gpu) {
  return planned(product, gpu, most_tokens(product, gpu), fit(product), [&](int64_t tokens) {
    return hybrid_units::price_linear(product.rows, product.cols, tokens, gpu, layout_of(product),
                                      dense_parts(product));
  });
}

std::vector<Launch> list(const Product& product, const Gpu& gpu) {
  return compared(product, gpu, most_tokens(product, gpu), fit(product), [&](int64_t tokens) {
    return hybrid_units::list_linear(product.rows, product.cols, tokens, gpu, layout_of(product),
                                     dense_parts(product));
  });
}

Shapes shapes() {
  return shapes_of("tokens row_units warps", hybrid_units::kShapes,
                   [](const hybrid_units::ShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.row_units, info.warps};
                   });
}

}  // namespace

Format hybrid_units_planners() {
  return {"hybrid_units",
          choose,
          {{"hybrid_units.sparse", LaunchNumbers<LinearPlan>::kFields, shapes, plan, list}}};
}

}  // namespace flashsparse::planning
