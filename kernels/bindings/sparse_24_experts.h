// SPDX-License-Identifier: Apache-2.0
// sparse_24's grouped kernels, and their launches as ops pass them.
#pragma once
#include <tuple>

#include "bindings/launch.h"
#include "cuda/sparse_24/experts_plan.h"
#include "cuda/sparse_24/experts_wgmma_plan.h"

namespace flashsparse {

template <>
struct LaunchNumbers<sparse_24::ExpertsPlan> {
  static constexpr const char* kFields = "shape row_warps weight_stages x_stages blocks";
  static auto of(sparse_24::ExpertsPlan& plan) {
    return std::tie(plan.shape, plan.row_warps, plan.weight_stages, plan.x_stages, plan.blocks);
  }
};

template <>
struct LaunchNumbers<sparse_24::ExpertsWgmmaPlan> {
  static constexpr const char* kFields = "shape down stages clusters";
  static auto of(sparse_24::ExpertsWgmmaPlan& plan) {
    return std::tie(plan.shape, plan.down, plan.stages, plan.clusters);
  }
};

// A kernel: the names of its launches, how a layer is priced, and how the launches of a product
// are priced and listed.
struct FewExperts {  // mma
  static constexpr const char *kUp = "sparse_24_experts.up", *kDown = "sparse_24_experts.down";
  static constexpr int kShapes = sparse_24::kExpertsShapeCount;
  static constexpr auto layer = sparse_24::price_experts_layer;
  static constexpr auto price = sparse_24::price_experts;
  static constexpr auto list = sparse_24::list_experts;
  // What a launch has beside the numbers that are given for it.
  static sparse_24::ExpertsPlan empty(const sparse_24::ExpertsProduct&) { return {}; }
};
struct ManyExperts {  // wgmma
  static constexpr const char *kUp = "sparse_24_experts.many_up",
                              *kDown = "sparse_24_experts.many_down";
  static constexpr int kShapes = sparse_24::kExpertsWgmmaShapeCount;
  static constexpr auto layer = sparse_24::price_experts_wgmma_layer;
  static constexpr auto price = sparse_24::price_experts_wgmma;
  static constexpr auto list = sparse_24::list_experts_wgmma;
  static sparse_24::ExpertsWgmmaPlan empty(const sparse_24::ExpertsProduct& product) {
    return {0, 1, 2, 1, product.gated};
  }
};

}  // namespace flashsparse
