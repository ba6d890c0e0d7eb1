// SPDX-License-Identifier: Apache-2.0
#include "bindings/nm_gather.h"
#include "bindings/plan.h"
#include "cuda/nm_gather/kernel_choice.h"

namespace flashsparse::planning {
namespace {

using nm_gather::Layout;
using nm_gather::PackedPlan;
using nm_gather::TilesPlan;

Layout layout_of(const Product& product) {
  return check_gather_pattern(product.n, product.m, product.vector_length, product.values,
                              product.group);
}

Kernel choose(const Product& product, const Gpu& gpu, const TokenLimits& limits) {
  return nm_gather::choose_kernel(layout_of(product), product.rows, product.cols, product.tokens,
                                  gpu, limits);
}

constexpr double kClock = 1755;  // a microsecond: clocks that planners count

auto few_fit(const Product& product) {
  const bool is_native = product.values == "native";
  return [is_native](int64_t) {
    return is_native ? Fit{2.8, 0.04, 0.8 / kClock, true} : Fit{1.9, 0.09, 0.98 / kClock, true};
  };
}

Launch plan_few(const Product& product, const Gpu& gpu) {
  const Layout layout = layout_of(product);
  return planned(product, gpu, nm_gather::max_tokens(layout, gpu), few_fit(product),
                 [&](int64_t tokens) {
                   return nm_gather::price_linear(layout, product.rows, product.cols, tokens, gpu);
                 });
}

std::vector<Launch> list_few(const Product& product, const Gpu& gpu) {
  const Layout layout = layout_of(product);
  return compared(product, gpu, nm_gather::max_tokens(layout, gpu), few_fit(product),
                  [&](int64_t tokens) {
                    return nm_gather::list_linear(layout, product.rows, product.cols, tokens, gpu);
                  });
}

auto many_fit(const Product& product) {
  const bool is_native = product.values == "native";
  return [is_native](int64_t) {
    return is_native ? Fit{-0.6, 0, 1.24 / kClock} : Fit{1.0, 0, 1.18 / kClock};
  };
}

// The kernel before, which transposes x: it reads and writes through the L2.
double transposing(const Product& product, const Gpu& gpu) {
  return 4.0 * static_cast<double>(product.tokens) * static_cast<double>(product.cols) / gpu.l2;
}

Layout tiles_layout(const Product& product, const Gpu& gpu) {
  const Layout layout = layout_of(product);
  FS_CHECK(nm_gather::tiles_fit(layout, gpu), "nm_gather has no tiles of such vectors");
  return layout;
}

std::vector<Launch> with_transposing(std::vector<Launch> all, const Product& product,
                                     const Gpu& gpu) {
  for (Launch& each : all) each.microseconds += transposing(product, gpu);
  return all;
}

Launch plan_many(const Product& product, const Gpu& gpu) {
  const Layout layout = tiles_layout(product, gpu);
  const Launch own = planned(product, gpu, product.tokens, many_fit(product), [&](int64_t tokens) {
    return nm_gather::price_tiles(layout, product.rows, product.cols, tokens, gpu);
  });
  return {own.numbers, own.microseconds + transposing(product, gpu)};
}

std::vector<Launch> list_many(const Product& product, const Gpu& gpu) {
  const Layout layout = tiles_layout(product, gpu);
  return with_transposing(compared(product, gpu, product.tokens, many_fit(product),
                                   [&](int64_t tokens) {
                                     return nm_gather::list_tiles(layout, product.rows,
                                                                  product.cols, tokens, gpu);
                                   }),
                          product, gpu);
}

Fit packed_fit(int64_t) { return {0.6, 0, 1.14 / kClock}; }

Layout packed_layout(const Product& product, const Gpu& gpu) {
  const Layout layout = layout_of(product);
  const char* const complaint = nm_gather::packed_complaint(layout, product.cols, gpu);
  FS_CHECK(complaint == nullptr, complaint);
  return layout;
}

Launch plan_packed(const Product& product, const Gpu& gpu) {
  const Layout layout = packed_layout(product, gpu);
  const Launch own = planned(product, gpu, product.tokens, packed_fit, [&](int64_t tokens) {
    return nm_gather::price_packed(layout, product.rows, product.cols, tokens, gpu);
  });
  return {own.numbers, own.microseconds + transposing(product, gpu)};
}

std::vector<Launch> list_packed(const Product& product, const Gpu& gpu) {
  const Layout layout = packed_layout(product, gpu);
  return with_transposing(compared(product, gpu, product.tokens, packed_fit,
                                   [&](int64_t tokens) {
                                     return nm_gather::list_packed(layout, product.rows,
                                                                   product.cols, tokens, gpu);
                                   }),
                          product, gpu);
}

Shapes few_shapes() {
  return shapes_of("value_bits tokens unit_rows stages warps", nm_gather::kShapes,
                   [](const nm_gather::ShapeInfo& info) {
                     return std::vector<int64_t>{info.value_bits, info.tokens, info.unit_rows,
                                                 info.stages, info.warps};
                   });
}

Shapes many_shapes() {
  return shapes_of("value_bits warp_rows warp_tokens token_warps row_warps", nm_gather::kTileShapes,
                   [](const nm_gather::TileShapeInfo& info) {
                     return std::vector<int64_t>{info.value_bits, info.warp_rows, info.warp_tokens,
                                                 info.token_warps, info.row_warps};
                   });
}

Shapes packed_shapes() {
  return shapes_of("tile_tokens rows stages", nm_gather::kPackedShapes,
                   [](const nm_gather::PackedShapeInfo& info) {
                     return std::vector<int64_t>{info.tile_tokens(), info.rows, info.stages};
                   });
}

}  // namespace

Format nm_gather_planners() {
  return {
      "nm_gather",
      choose,
      {{"nm_gather.few", LaunchNumbers<nm_gather::Plan>::kFields, few_shapes, plan_few, list_few},
       {"nm_gather.many", LaunchNumbers<TilesPlan>::kFields, many_shapes, plan_many, list_many},
       {"nm_gather.packed", LaunchNumbers<PackedPlan>::kFields, packed_shapes, plan_packed,
        list_packed}}};
}

}  // namespace flashsparse::planning
