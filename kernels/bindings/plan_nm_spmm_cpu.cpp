// SPDX-License-Identifier: Apache-2.0
#include "bindings/nm_vector.h"
#include "bindings/plan.h"
#include "cuda/nm_spmm/linear_plan.h"

namespace flashsparse::planning {
namespace {

using nm_spmm::Layout;

Layout layout_of(const Product& product) {
  check_pattern(product.n, product.m, product.vector_length);
  const Layout layout = nm_spmm::layout_of(static_cast<int>(product.n), static_cast<int>(product.m),
                                           static_cast<int>(product.vector_length));
  FS_CHECK(layout.columns > 0, "nm_spmm cannot hold ", product.n, ":", product.m, " in vectors of ",
           product.vector_length, " rows");
  return layout;
}

// It has one kernel, and no limit to the tokens that it is the faster one for.
Kernel choose(const Product&, const Gpu&, const TokenLimits&) { return Kernel::kSparse; }

std::vector<int64_t> numbers(const nm_spmm::Plan& plan) { return {plan.kernel, plan.splits}; }

Fit fit(int64_t) { return {6.8, 0, 1.2 / 1755}; }  // clocks

Launch plan(const Product& product, const Gpu& gpu) {
  const Layout layout = layout_of(product);
  return planned(
      product, gpu, nm_spmm::max_tokens(layout, product.cols), fit,
      [&](int64_t tokens) {
        return nm_spmm::price_linear(layout, product.rows, product.cols, tokens, gpu);
      },
      numbers);
}

std::vector<Launch> list(const Product& product, const Gpu& gpu) {
  const Layout layout = layout_of(product);
  return compared(
      product, gpu, nm_spmm::max_tokens(layout, product.cols), fit,
      [&](int64_t tokens) {
        return nm_spmm::list_linear(layout, product.rows, product.cols, tokens, gpu);
      },
      numbers);
}

Shapes shapes() {
  return shapes_of("tokens rows thread_tokens thread_rows token_lanes stages packing blocks",
                   nm_spmm::kKernels, [](const nm_spmm::KernelInfo& info) {
                     return std::vector<int64_t>{
                         info.tokens,      info.rows,   info.thread_tokens, info.thread_rows,
                         info.token_lanes, info.stages, info.packing,       info.blocks};
                   });
}

}  // namespace

Format nm_spmm_planners() {
  return {"nm_spmm", choose, {{"nm_spmm.sparse", "kernel splits", shapes, plan, list}}};
}

}  // namespace flashsparse::planning
