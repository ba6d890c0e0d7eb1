// SPDX-License-Identifier: Apache-2.0
#include "bindings/hybrid_units.h"
#include "bindings/plan.h"
#include "bindings/sparse_24.h"
#include "cuda/hybrid_units/kernel_choice.h"

namespace flashsparse::planning {
namespace {

using hybrid_units::LinearPlan;
using hybrid_units::UnitLayout;
using hybrid_units::WgmmaPlan;

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

Kernel choose(const Product& product, const Gpu& gpu, const TokenLimits& limits) {
  return hybrid_units::choose_kernel(product.tokens, gpu, layout_of(product), limits);
}

// Of the launches that linear_plan.cpp and wgmma_plan.cpp are fitted to, on an H200.
auto few_fit(const Product& product) {
  return [&](int64_t) {
    return product.values == "native" ? Fit{1.0, 0, 0.92}
           : product.values == "int4" ? Fit{4.0, 0, 0.73}
                                      : Fit{2.1, 0, 0.86};
  };
}
auto many_fit(const Product& product) {
  return [&](int64_t) { return product.values == "native" ? Fit{0.3, 0, 0.93} : Fit{0, 0, 0.92}; };
}

int64_t most_tokens(const Product& product, const Gpu& gpu) {
  return hybrid_units::max_tokens(gpu, layout_of(product));
}

Launch plan_few(const Product& product, const Gpu& gpu) {
  return planned(product, gpu, most_tokens(product, gpu), few_fit(product), [&](int64_t tokens) {
    return hybrid_units::price_linear(product.rows, product.cols, tokens, gpu, layout_of(product),
                                      dense_parts(product));
  });
}

std::vector<Launch> list_few(const Product& product, const Gpu& gpu) {
  return compared(product, gpu, most_tokens(product, gpu), few_fit(product), [&](int64_t tokens) {
    return hybrid_units::list_linear(product.rows, product.cols, tokens, gpu, layout_of(product),
                                     dense_parts(product));
  });
}

Shapes few_shapes() {
  return shapes_of("tokens row_units warps", hybrid_units::kShapes,
                   [](const hybrid_units::ShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.row_units, info.warps};
                   });
}

Launch plan_many(const Product& product, const Gpu& gpu) {
  return planned(product, gpu, product.tokens, many_fit(product), [&](int64_t tokens) {
    return hybrid_units::price_wgmma(product.rows, product.cols, tokens, gpu, layout_of(product),
                                     dense_parts(product));
  });
}

std::vector<Launch> list_many(const Product& product, const Gpu& gpu) {
  return compared(product, gpu, product.tokens, many_fit(product), [&](int64_t tokens) {
    return hybrid_units::list_wgmma(product.rows, product.cols, tokens, gpu, layout_of(product),
                                    dense_parts(product));
  });
}

Shapes many_shapes() {
  return shapes_of("tokens groups bits", hybrid_units::kWgmmaShapes,
                   [](const hybrid_units::WgmmaShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.groups, info.bits};
                   });
}

}  // namespace

Format hybrid_units_planners() {
  return {"hybrid_units",
          choose,
          {{"hybrid_units.few", LaunchNumbers<LinearPlan>::kFields, few_shapes, plan_few, list_few},
           {"hybrid_units.many", LaunchNumbers<WgmmaPlan>::kFields, many_shapes, plan_many,
            list_many}}};
}

}  // namespace flashsparse::planning
