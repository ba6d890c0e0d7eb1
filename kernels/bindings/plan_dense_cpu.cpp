// SPDX-License-Identifier: Apache-2.0
// The kernels for dense 16-bit layers, of weights whose rows lie on 16 bytes.
#include "bindings/dense.h"
#include "bindings/plan.h"

namespace flashsparse::planning {
namespace {

constexpr int64_t kItem = 2;  // bytes of an element

void check_tokens(const Product& product, int64_t most) {
  FS_CHECK(product.tokens <= most, "the kernel takes up to ", most, " tokens, not ",
           product.tokens);
}

Product with_bytes(const Product& product) {
  Product dense = product;
  dense.nbytes = kItem * product.rows * product.cols;
  return dense;
}

Fit flat_fit(int64_t) { return {2.0, 0.02, 1.04 / 35e3}; }  // bytes

Launch plan_flat(const Product& product, const Gpu& gpu) {
  check_tokens(product, dense::max_flat_tokens(true));
  return planned(with_bytes(product), gpu, dense::max_flat_tokens(true), flat_fit,
                 [&](int64_t tokens) {
                   return dense::price_flat_gemm(product.rows, product.cols, tokens, true, gpu);
                 });
}

std::vector<Launch> list_flat(const Product& product, const Gpu& gpu) {
  check_tokens(product, dense::max_flat_tokens(true));
  return compared(with_bytes(product), gpu, product.tokens, flat_fit, [&](int64_t tokens) {
    return dense::list_flat_gemm(product.rows, product.cols, tokens, true, gpu);
  });
}

Launch plan_gemv(const Product& product, const Gpu& gpu) {
  check_tokens(product, dense::max_gemv_tokens(true));
  return {{dense::plan_gemv(product.rows, product.tokens, true, gpu.multiprocessors)},
          dense::gemv_microseconds(product.rows, product.cols, product.tokens, gpu)};
}

std::vector<Launch> list_gemv(const Product& product, const Gpu& gpu) {
  check_tokens(product, dense::max_gemv_tokens(true));
  std::vector<Launch> all;
  for (int shape = 0; shape < dense::kUnalignedGemv; ++shape) {
    if (dense::kGemvShapes[shape].tokens >= product.tokens) {
      all.push_back(
          {{shape}, dense::gemv_microseconds(product.rows, product.cols, product.tokens, gpu)});
    }
  }
  return all;
}

Shapes flat_shapes() {
  return shapes_of("tokens row_blocks warps_n warps_k stages blocks", dense::kFlatShapes,
                   [](const dense::FlatShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens,  info.row_blocks, info.warps_n,
                                                 info.warps_k, info.stages,     info.blocks};
                   });
}

Shapes gemv_shapes() {
  return shapes_of("tokens rows_a_warp warps_n warps_k stages blocks", dense::kGemvShapes,
                   [](const dense::GemvShapeInfo& info) {
                     return std::vector<int64_t>{info.tokens,  info.rows_a_warp, info.warps_n,
                                                 info.warps_k, info.stages,      info.blocks};
                   });
}

}  // namespace

Format dense_planners() {
  return {"dense",
          nullptr,
          {{"dense.flat_gemm", LaunchNumbers<dense::FlatPlan>::kFields, flat_shapes, plan_flat,
            list_flat},
           {"dense.gemv", LaunchNumbers<GemvPlan>::kFields, gemv_shapes, plan_gemv, list_gemv}}};
}

}  // namespace flashsparse::planning
