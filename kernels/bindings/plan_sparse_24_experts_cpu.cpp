// SPDX-License-Identifier: Apache-2.0
// Plans of the two products of a layer of experts in sparse_24: "up", of gate and up projections,
// with [intermediate, hidden] as its shape, and "down", with [hidden, intermediate].
#include <cmath>

#include "bindings/plan.h"
#include "bindings/sparse_24.h"
#include "bindings/sparse_24_experts.h"

namespace flashsparse::planning {
namespace {

using sparse_24::ExpertsPlan;
using sparse_24::ExpertsProduct;

ExpertsProduct product_of(const Product& product, bool gated) {
  FS_CHECK(product.experts >= 1 && product.top_k >= 1 && product.top_k <= product.experts,
           "a layer of experts has one or more, of which a token has one or more; not ",
           product.experts, " and ", product.top_k);
  return {product.rows,
          product.cols,
          gated,
          product.tokens,
          product.top_k,
          product.experts,
          sparse_24_layout(product.values, product.group)};
}

int shape_of(const ExpertsProduct& product, const Gpu& gpu) {
  ExpertsProduct other = product;
  std::swap(other.rows, other.cols);
  other.gated = !product.gated;
  return sparse_24::experts_shape(product, other, gpu);
}

// Bytes are those of the experts that some token has.
Product of_active(const Product& product) {
  const double chosen = static_cast<double>(product.top_k) / static_cast<double>(product.experts);
  Product active = product;
  active.nbytes =
      static_cast<int64_t>(static_cast<double>(product.nbytes) *
                           (1 - std::pow(1 - chosen, static_cast<double>(product.tokens))));
  return active;
}

// With its share of what else a layer launches: the order of slots and their sum.
Fit fit(int64_t) { return {7.9, 0, 1.0}; }

template <bool gated>
Launch plan(const Product& product, const Gpu& gpu) {
  const ExpertsProduct own = product_of(product, gated);
  const int shape = shape_of(own, gpu);
  return planned(of_active(product), gpu, product.tokens, fit, [&](int64_t) {
    return priced_as_costed(
        gpu, [&](const Gpu& costed) { return sparse_24::price_experts(own, shape, costed); });
  });
}

template <bool gated>
std::vector<Launch> list(const Product& product, const Gpu& gpu) {
  const ExpertsProduct own = product_of(product, gated);
  return compared(of_active(product), gpu, product.tokens, fit, [&](int64_t) {
    std::vector<Priced<sparse_24::ExpertsPlan>> all;
    for (int shape = 0; shape < sparse_24::kExpertsShapeCount; ++shape) {
      const auto found = sparse_24::list_experts(own, shape, as_costed(gpu));
      all.insert(all.end(), found.begin(), found.end());
    }
    return all;
  });
}

Shapes shapes() {
  return shapes_of("tokens row_units warps", sparse_24::kExpertsShapes,
                   [](const sparse_24::ShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.row_units, info.warps};
                   });
}

}  // namespace

Format sparse_24_experts_planners() {
  constexpr const char* kFields = LaunchNumbers<ExpertsPlan>::kFields;
  return {"sparse_24_experts",
          nullptr,
          {{"sparse_24_experts.up", kFields, shapes, plan<true>, list<true>},
           {"sparse_24_experts.down", kFields, shapes, plan<false>, list<false>}}};
}

}  // namespace flashsparse::planning
