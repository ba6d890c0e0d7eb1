// SPDX-License-Identifier: Apache-2.0
#include "bindings/plan.h"
#include "bindings/tiled_bitmap.h"
#include "cuda/tiled_bitmap/kernel_choice.h"

namespace flashsparse::planning {
namespace {

using tiled_bitmap::LinearPlan;
using tiled_bitmap::Operands;
using tiled_bitmap::WgmmaPlan;

Operands operands_of(const Product& product) {
  if (product.values == "native") return Operands::kNative;
  FS_CHECK(product.values == "int8", "tiled_bitmap holds native values or int8, not ",
           product.values);
  return product.quantizes_x ? Operands::kRounded : Operands::kCodes;
}

// Of the weight: its bytes without offsets and scales.
int64_t lines_of(const Product& product) {
  const int64_t units = tiled_bitmap::units(product.rows, product.cols);
  const int64_t scales = operands_of(product) == Operands::kNative ? 0 : product.rows;
  const int64_t lines = (product.nbytes - 4 * (units + 1 + scales)) / tiled_bitmap::kLineBytes;
  return std::max(lines, units * tiled_bitmap::kHeadLines);
}

Kernel choose(const Product& product, const Gpu& gpu, const TokenLimits& limits) {
  return tiled_bitmap::choose_kernel(product.rows, product.cols, product.tokens, gpu,
                                     operands_of(product), limits);
}

auto few_fit(const Product& product) {
  const Operands operands = operands_of(product);
  return [operands](int64_t tokens) {
    return operands == Operands::kCodes     ? Fit{4.2, 0, tokens > 16 ? 1.28 : 1.42, true}
           : operands == Operands::kRounded ? Fit{5.6, 0.01, 1.98, true}
           : tokens > 32                    ? Fit{5.2, 0.02, 1.94}
                                            : Fit{3.3, 0.06, 1.09};
  };
}

Launch plan_few(const Product& product, const Gpu& gpu) {
  return planned(
      product, gpu, tiled_bitmap::max_tokens(gpu), few_fit(product), [&](int64_t tokens) {
        return priced_as_costed(gpu, [&](const Gpu& own) {
          return tiled_bitmap::price_linear(product.rows, product.cols, lines_of(product), tokens,
                                            own, operands_of(product));
        });
      });
}

std::vector<Launch> list_few(const Product& product, const Gpu& gpu) {
  return compared(product, gpu, tiled_bitmap::max_tokens(gpu), few_fit(product),
                  [&](int64_t tokens) {
                    return tiled_bitmap::list_linear(product.rows, product.cols, lines_of(product),
                                                     tokens, as_costed(gpu), operands_of(product));
                  });
}

// Of more tokens than layers.csv has: fitted to spmm.csv.
Fit many_fit(int64_t tokens) { return tokens > 256 ? Fit{-2.2, 0, 1.06} : Fit{0, 0, 0.95}; }

Launch plan_many(const Product& product, const Gpu& gpu) {
  return planned(product, gpu, product.tokens, many_fit, [&](int64_t tokens) {
    return tiled_bitmap::price_wgmma(product.rows, product.cols, tokens, lines_of(product), gpu,
                                     operands_of(product));
  });
}

std::vector<Launch> list_many(const Product& product, const Gpu& gpu) {
  return compared(product, gpu, product.tokens, many_fit, [&](int64_t tokens) {
    return tiled_bitmap::list_wgmma(product.rows, product.cols, tokens, lines_of(product), gpu,
                                    operands_of(product));
  });
}

constexpr const char* kFewFields = LaunchNumbers<LinearPlan>::kFields;

Shapes of_shapes(const tiled_bitmap::Shapes& shapes) {
  return shapes_of("tokens row_units warps spreads", shapes, [](const auto& info) {
    return std::vector<int64_t>{info.tokens, info.row_units, info.warps, info.spreads};
  });
}

Shapes few_shapes() { return of_shapes(tiled_bitmap::shapes_of(Operands::kNative)); }

Shapes codes_shapes() { return of_shapes(tiled_bitmap::shapes_of(Operands::kCodes)); }

Shapes many_shapes() {
  return shapes_of("tokens groups", tiled_bitmap::kWgmmaShapes,
                   [](const mma_units::WgmmaShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens, info.groups};
                   });
}

}  // namespace

Format tiled_bitmap_planners() {
  return {"tiled_bitmap",
          choose,
          {{"tiled_bitmap.few", kFewFields, few_shapes, plan_few, list_few},
           {"tiled_bitmap.codes", kFewFields, codes_shapes, plan_few, list_few},
           {"tiled_bitmap.many", LaunchNumbers<WgmmaPlan>::kFields, many_shapes, plan_many,
            list_many}}};
}

}  // namespace flashsparse::planning
