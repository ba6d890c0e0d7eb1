// SPDX-License-Identifier: Apache-2.0
#include "bindings/plan.h"
#include "bindings/sparse_24.h"
#include "cuda/sparse_24/kernel_choice.h"

namespace flashsparse::planning {
namespace {

using sparse_24::LinearPlan;
using sparse_24::WgmmaPlan;

sparse_24::UnitLayout layout_of(const Product& product) {
  return sparse_24_layout(product.values, product.group);
}

int x_bytes(const Product& product) { return product.quantizes_x ? 1 : 2; }

Kernel choose(const Product& product, const Gpu& gpu, const TokenLimits& limits) {
  return sparse_24::choose_kernel(product.rows, product.cols, product.tokens, gpu,
                                  layout_of(product), x_bytes(product), limits);
}

auto few_fit(const Product& product) {
  return [&](int64_t) {
    return product.quantizes_x          ? Fit{2.4, 0, 1.09}
           : product.values == "native" ? Fit{1.5, 0, 1.03}
                                        : Fit{1.4, 0, 1.08};
  };
}

// Of an element of x in the kernel for few tokens.
int few_x_bytes(const Product& product, const Gpu& gpu) {
  return product.quantizes_x ? sparse_24::few_x_bytes(layout_of(product), gpu) : 2;
}

int64_t few_tokens(const Product& product, const Gpu& gpu) {
  return sparse_24::max_tokens(gpu, layout_of(product), few_x_bytes(product, gpu));
}

Launch plan_few(const Product& product, const Gpu& gpu) {
  return planned(product, gpu, few_tokens(product, gpu), few_fit(product), [&](int64_t tokens) {
    return sparse_24::price_linear(product.rows, product.cols, tokens, gpu, layout_of(product),
                                   few_x_bytes(product, gpu));
  });
}

std::vector<Launch> list_few(const Product& product, const Gpu& gpu) {
  return compared(product, gpu, few_tokens(product, gpu), few_fit(product), [&](int64_t tokens) {
    return sparse_24::list_linear(product.rows, product.cols, tokens, gpu, layout_of(product),
                                  few_x_bytes(product, gpu));
  });
}

auto many_fit(const Product& product) {
  return [&](int64_t tokens) {
    return product.quantizes_x          ? Fit{1.9, 0, 1.0}
           : product.values == "native" ? Fit{0.8, 0, 0.96}
           : tokens > 64                ? Fit{0.3, 0, 0.95}
                                        : Fit{1.1, 0, 0.92};
  };
}

Launch plan_many(const Product& product, const Gpu& gpu) {
  return planned(product, gpu, product.tokens, many_fit(product), [&](int64_t tokens) {
    return sparse_24::price_wgmma(product.rows, product.cols, tokens, gpu, layout_of(product),
                                  x_bytes(product));
  });
}

std::vector<Launch> list_many(const Product& product, const Gpu& gpu) {
  return compared(product, gpu, product.tokens, many_fit(product), [&](int64_t tokens) {
    return sparse_24::list_wgmma(product.rows, product.cols, tokens, gpu, layout_of(product),
                                 x_bytes(product));
  });
}

Shapes few_shapes() {
  return shapes_of("tokens row_units warps", sparse_24::kShapes,
                   [](const sparse_24::ShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.row_units, info.warps};
                   });
}

Shapes many_shapes() {
  return shapes_of("tokens groups high bits", sparse_24::kWgmmaShapes,
                   [](const sparse_24::WgmmaShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.groups, info.high, info.bits};
                   });
}

}  // namespace

Format sparse_24_planners() {
  return {
      "sparse_24",
      choose,
      {{"sparse_24.few", LaunchNumbers<LinearPlan>::kFields, few_shapes, plan_few, list_few},
       {"sparse_24.many", LaunchNumbers<WgmmaPlan>::kFields, many_shapes, plan_many, list_many}}};
}

}  // namespace flashsparse::planning
