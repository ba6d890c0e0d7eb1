// SPDX-License-Identifier: Apache-2.0
#include "bindings/exact_units.h"
#include "bindings/plan.h"
#include "cuda/exact_units/kernel_choice.h"

namespace flashsparse::planning {
namespace {

using exact_units::LinearPlan;
using exact_units::WgmmaPlan;

exact_units::Kind kind(const Product& product) {
  return product.n > 0 ? exact_units::Kind::k24 : exact_units::Kind::kDense;
}

// From the bytes of the weight; those of a weight that is not packed yet say nothing.
int unit_slots(const Product& product) {
  const int64_t units = exact_units::unit_rows(product.rows) * exact_units::unit_cols(product.cols);
  const int64_t beside = product.nbytes / units - exact_units::unit_bytes(kind(product));
  return beside >= 64 ? 16 : beside >= 32 ? 8 : 4;
}

Kernel choose(const Product& product, const Gpu& gpu, const TokenLimits& limits) {
  return exact_units::choose_kernel(product.rows, product.cols, product.tokens, gpu, kind(product),
                                    limits);
}

// Of eight layers after another kernel on an H100 (lossless.csv), which reads 2 to 6% less from
// memory than its row of kGpus says.
Fit few_fit(int64_t) { return {3.0, 0, 1.05}; }
// Of the same layers on an H200, with 32 and 64 tokens.
auto many_fit(const Product& product) {
  return [is_24 = product.n > 0](int64_t tokens) {
    return Fit{2.5, 0, is_24 ? 0.88 : tokens > 32 ? 1.04 : 0.9};
  };
}

Launch plan_few(const Product& product, const Gpu& gpu) {
  return planned(product, gpu, exact_units::max_tokens(gpu), few_fit, [&](int64_t tokens) {
    return exact_units::price_linear(product.rows, product.cols, tokens, gpu, kind(product),
                                     unit_slots(product));
  });
}

std::vector<Launch> list_few(const Product& product, const Gpu& gpu) {
  return compared(product, gpu, exact_units::max_tokens(gpu), few_fit, [&](int64_t tokens) {
    return exact_units::list_linear(product.rows, product.cols, tokens, gpu, kind(product),
                                    unit_slots(product));
  });
}

Shapes few_shapes() {
  return shapes_of("tokens row_units warps", exact_units::kShapes,
                   [](const exact_units::ShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.row_units, info.warps};
                   });
}

Launch plan_many(const Product& product, const Gpu& gpu) {
  return planned(product, gpu, product.tokens, many_fit(product), [&](int64_t tokens) {
    return exact_units::price_wgmma(product.rows, product.cols, tokens, gpu, kind(product),
                                    unit_slots(product));
  });
}

std::vector<Launch> list_many(const Product& product, const Gpu& gpu) {
  return compared(product, gpu, product.tokens, many_fit(product), [&](int64_t tokens) {
    return exact_units::list_wgmma(product.rows, product.cols, tokens, gpu, kind(product),
                                   unit_slots(product));
  });
}

Shapes many_shapes() {
  return shapes_of("tokens groups", exact_units::kWgmmaShapes,
                   [](const mma_units::WgmmaShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.groups};
                   });
}

}  // namespace

Format exact_units_planners() {
  return {
      "exact_units",
      choose,
      {{"exact_units.few", LaunchNumbers<LinearPlan>::kFields, few_shapes, plan_few, list_few},
       {"exact_units.many", LaunchNumbers<WgmmaPlan>::kFields, many_shapes, plan_many, list_many}}};
}

}  // namespace flashsparse::planning
