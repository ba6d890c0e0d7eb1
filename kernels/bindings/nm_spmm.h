// SPDX-License-Identifier: Apache-2.0
// Shared by nm_spmm's planner and its CUDA op.
#pragma once
#include <tuple>

#include "bindings/launch.h"
#include "bindings/nm_vector.h"
#include "cuda/nm_spmm/linear_plan.h"

namespace flashsparse {

template <>
struct LaunchNumbers<nm_spmm::Plan> {
  static constexpr const char* kFields = "kernel splits";
  static auto of(nm_spmm::Plan& plan) { return std::tie(plan.kernel, plan.splits); }
};

inline nm_spmm::Layout check_spmm_pattern(int64_t n, int64_t m, int64_t vector_length) {
  check_pattern(n, m, vector_length);
  const nm_spmm::Layout layout =
      nm_spmm::layout_of(static_cast<int>(n), static_cast<int>(m), static_cast<int>(vector_length));
  FS_CHECK(layout.columns > 0, "nm_spmm cannot hold ", n, ":", m, " in vectors of ", vector_length,
           " rows: pack to nm_vector");
  return layout;
}

}  // namespace flashsparse
