// SPDX-License-Identifier: Apache-2.0
// Launches of kernels that multiply units, as the ops pass them (launch.h): LaunchNumbers of a
// format's plan inherits these.
#pragma once
#include <tuple>

namespace flashsparse::mma_units {

struct LinearNumbers {
  static constexpr const char* kFields =
      "shape row_warps column_warps weight_stages x_stages blocks";
  template <class Plan>
  static auto of(Plan& plan) {
    return std::tie(plan.shape, plan.row_warps, plan.column_warps, plan.weight_stages,
                    plan.x_stages, plan.blocks);
  }
};

struct WgmmaNumbers {
  static constexpr const char* kFields = "shape down depth stages clusters";
  template <class Plan>
  static auto of(Plan& plan) {
    return std::tie(plan.shape, plan.down, plan.depth, plan.stages, plan.clusters);
  }
};

}  // namespace flashsparse::mma_units
