// SPDX-License-Identifier: Apache-2.0
#include "bindings/nm_spmm.h"
#include "bindings/plan.h"

namespace flashsparse::planning {
namespace {

using nm_spmm::Layout;

Layout layout_of(const Product& product) {
  return check_spmm_pattern(product.n, product.m, product.vector_length);
}

// It has one kernel, and no limit to the tokens that it is the faster one for.
Kernel choose(const Product&, const Gpu&, const TokenLimits&) { return Kernel::kSparse; }

Fit fit(int64_t) { return {6.8, 0, 1.2 / 1755}; }  // clocks

Launch plan(const Product& product, const Gpu& gpu) {
  const Layout layout = layout_of(product);
  return planned(product, gpu, nm_spmm::max_tokens(layout, product.cols), fit, [&](int64_t tokens) {
    return nm_spmm::price_linear(layout, product.rows, product.cols, tokens, gpu);
  });
}

std::vector<Launch> list(const Product& product, const Gpu& gpu) {
  const Layout layout = layout_of(product);
  return compared(product, gpu, nm_spmm::max_tokens(layout, product.cols), fit,
                  [&](int64_t tokens) {
                    return nm_spmm::list_linear(layout, product.rows, product.cols, tokens, gpu);
                  });
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
  return {"nm_spmm",
          choose,
          {{"nm_spmm.sparse", LaunchNumbers<nm_spmm::Plan>::kFields, shapes, plan, list}}};
}

}  // namespace flashsparse::planning
