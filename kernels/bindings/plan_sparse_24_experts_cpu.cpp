// SPDX-License-Identifier: Apache-2.0
// Plans of the two products of a layer of experts in sparse_24: "up", of gate and up projections,
// with [intermediate, hidden] as its shape, and "down", with [hidden, intermediate]; and, by wgmma,
// "many_up" and "many_down".
#include <cmath>

#include "bindings/plan.h"
#include "bindings/sparse_24.h"
#include "bindings/sparse_24_experts.h"

namespace flashsparse::planning {
namespace {

using sparse_24::ExpertsPlan;
using sparse_24::ExpertsProduct;
using sparse_24::ExpertsWgmmaPlan;

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

ExpertsProduct other_of(const ExpertsProduct& product) {
  ExpertsProduct other = product;
  std::swap(other.rows, other.cols);
  other.gated = !product.gated;
  return other;
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

template <class Kernel, bool gated>
Launch plan(const Product& product, const Gpu& gpu) {
  const ExpertsProduct own = product_of(product, gated);
  const int shape = Kernel::layer(own, other_of(own), gpu).shape;
  return planned(of_active(product), gpu, product.tokens, fit, [&](int64_t) {
    return priced_as_costed(gpu,
                            [&](const Gpu& costed) { return Kernel::price(own, shape, costed); });
  });
}

template <class Kernel, bool gated>
std::vector<Launch> list(const Product& product, const Gpu& gpu) {
  const ExpertsProduct own = product_of(product, gated);
  if (Kernel::layer(own, other_of(own), gpu).cost < 0) return {};  // the other product has none
  return compared(of_active(product), gpu, product.tokens, fit, [&](int64_t) {
    auto all = Kernel::list(own, 0, as_costed(gpu));
    for (int shape = 1; shape < Kernel::kShapes; ++shape) {
      const auto found = Kernel::list(own, shape, as_costed(gpu));
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

Shapes many_shapes() {
  return shapes_of("tokens groups bits", sparse_24::kExpertsWgmmaShapes,
                   [](const sparse_24::WgmmaShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.groups, info.bits};
                   });
}

flashsparse::Kernel choose(const Product& product, const Gpu& gpu, const TokenLimits&) {
  const ExpertsProduct up = product_of(product, true);
  return sparse_24::choose_experts_kernel(up, other_of(up), gpu);
}

}  // namespace

Format sparse_24_experts_planners() {
  constexpr const char* kFields = LaunchNumbers<ExpertsPlan>::kFields;
  constexpr const char* kMany = LaunchNumbers<ExpertsWgmmaPlan>::kFields;
  using Few = FewExperts;
  using Many = ManyExperts;
  return {"sparse_24_experts",
          choose,
          {{Few::kUp, kFields, shapes, plan<Few, true>, list<Few, true>},
           {Few::kDown, kFields, shapes, plan<Few, false>, list<Few, false>},
           {Many::kUp, kMany, many_shapes, plan<Many, true>, list<Many, true>},
           {Many::kDown, kMany, many_shapes, plan<Many, false>, list<Many, false>}}};
}

}  // namespace flashsparse::planning
