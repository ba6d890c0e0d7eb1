// SPDX-License-Identifier: Apache-2.0
// Launches of sparse_24's grouped kernels, as ops pass them.
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

}  // namespace flashsparse
