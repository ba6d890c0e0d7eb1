// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of nm_gather. Contents are validated by the format's `check`, or
// follow from nm_vector's.
#pragma once
#include <optional>
#include <string>
#include <tuple>

#include "bindings/codes.h"
#include "bindings/launch.h"
#include "bindings/nm_vector.h"
#include "cuda/nm_gather/linear_plan.h"
#include "cuda/nm_gather/packed_plan.h"
#include "cuda/nm_gather/tiles_plan.h"
#include "formats/nm_gather.h"

namespace flashsparse {

template <>
struct LaunchNumbers<nm_gather::Plan> {
  static constexpr const char* kFields = "shape row_warps depth_warps splits chunk_sections";
  static auto of(nm_gather::Plan& plan) {
    return std::tie(plan.shape, plan.row_warps, plan.depth_warps, plan.splits, plan.chunk_sections);
  }
};

template <>
struct LaunchNumbers<nm_gather::TilesPlan> {
  static constexpr const char* kFields =
      "shape row_warps splits x_stages weight_stages band cluster";
  static auto of(nm_gather::TilesPlan& plan) {
    return std::tie(plan.shape, plan.row_warps, plan.splits, plan.x_stages, plan.weight_stages,
                    plan.band, plan.cluster);
  }
};

template <>
struct LaunchNumbers<nm_gather::PackedPlan> {
  static constexpr const char* kFields = "shape band";
  static auto of(nm_gather::PackedPlan& plan) { return std::tie(plan.shape, plan.band); }
};

// The layout of a pattern and of the options `values` and `group` (0: one scale for each row).
inline nm_gather::Layout check_gather_pattern(int64_t n, int64_t m, int64_t vector_length,
                                              const std::string& values = "native",
                                              int64_t group = 0) {
  check_pattern(n, m, vector_length);
  const ValueType type = value_type_of(values);
  const bool by_group = group == 32 || group == 64 || group == 128;
  FS_CHECK(nm_gather::scaled_by_group(type) ? by_group : group == 0,
           "nm_gather has kernels for native and 8-bit values with group 0, and for 4-bit values "
           "with group 32, 64 or 128, not for ",
           values, " with group ", group, ": keep the weight in nm_vector");
  const auto layout =
      nm_gather::layout_of(static_cast<int>(n), static_cast<int>(m),
                           static_cast<int>(vector_length), type, static_cast<int>(group));
  FS_CHECK(layout.panel_columns > 0, "nm_gather cannot hold ", n, ":", m, " in vectors of ",
           vector_length, " rows with values ", values, ": pack to nm_vector");
  return layout;
}

// The tensors of a weight in nm_gather, as arguments of ops.
struct GatherTensors {
  const Tensor& values;
  const Tensor& index;
  const std::optional<Tensor> row_scales;  // for value types with scales of rows
};

inline void check_nm_gather(const GatherTensors& weight, int64_t out, int64_t in,
                            const nm_gather::Layout& layout) {
  const auto& [values, index, row_scales] = weight;
  const bool codes = layout.value_type != ValueType::kNative;
  check_tensor(values, "gather_values", codes ? ScalarType::Byte : ScalarType::Short, 3);
  check_tensor(index, "gather_index", ScalarType::Byte, 3);
  check_beside(index, "gather_index", values, "gather_values");
  const bool by_row = nm_gather::scaled_by_row(layout.value_type);
  FS_CHECK(row_scales.has_value() == by_row, "weight_scale is for values of 8 bits: ",
           by_row ? "these need it" : "those of 4 bits have theirs inside, native ones none");
  if (by_row) {
    check_tensor(*row_scales, "weight_scale", ScalarType::Float, 2);
    check_beside(*row_scales, "weight_scale", values, "gather_values");
    FS_CHECK(row_scales->size(0) == out && row_scales->size(1) == 1, "weight_scale of a [", out,
             ", ", in, "] weight must be [", out, ", 1], not [", row_scales->size(0), ", ",
             row_scales->size(1), "]");
  }
  check_shape(out, in);
  FS_CHECK(out <= INT32_MAX - 1024 && in <= INT32_MAX - 1024, "a [", out, ", ", in,
           "] weight is too large for nm_gather");
  const int64_t units = layout.units(out), pairs = layout.pairs(in), groups = layout.groups(out);
  const int64_t row = codes ? layout.pair_bytes() : layout.unit_rows * nm_gather::kPair;
  FS_CHECK(values.size(0) == units && values.size(1) == pairs && values.size(2) == row,
           "gather_values of a [", out, ", ", in, "] weight must be [", units, ", ", pairs, ", ",
           row, "]");
  FS_CHECK(index.size(0) == groups && index.size(1) == pairs && index.size(2) == nm_gather::kPair,
           "gather_index of a [", out, ", ", in, "] weight must be [", groups, ", ", pairs, ", ",
           nm_gather::kPair, "]");
}

}  // namespace flashsparse
