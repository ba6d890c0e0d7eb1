// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of sparse_24. No word of the units is an address: whatever they hold,
// no kernel accesses out of bounds.
#pragma once
#include <optional>
#include <string>

#include "bindings/codes.h"
#include "bindings/launch.h"
#include "bindings/mma_units.h"
#include "bindings/packed.h"
#include "cuda/sparse_24/linear_plan.h"
#include "cuda/sparse_24/wgmma_plan.h"
#include "formats/sparse_24.h"

namespace flashsparse {

template <>
struct LaunchNumbers<sparse_24::LinearPlan> : mma_units::LinearNumbers {};

template <>
struct LaunchNumbers<sparse_24::WgmmaPlan> : mma_units::WgmmaNumbers {};

// How units store their values, from the arguments of ops.
inline sparse_24::UnitLayout sparse_24_layout(const std::string& values, int64_t group) {
  const ValueType type = value_type_of(values);
  const bool by_group = group == 32 || group == 64 || group == 128;
  FS_CHECK(group == 0 || (type != ValueType::kNative && by_group),
           "units store native values, and codes with scales of rows (group 0) or of 32, 64 "
           "or 128 ",
           "columns; not ", values, " with group ", group);
  return {type, static_cast<int>(group)};
}

// Checks units and scales of rows, which must be absent if values have none.
inline void check_sparse_24(const Tensor& units, const std::optional<Tensor>& scales, int64_t out,
                            int64_t in, sparse_24::UnitLayout layout) {
  check_tensor(units, "units", ScalarType::Int, 3);
  check_shape(out, in);
  const int64_t down = sparse_24::unit_rows(out), across = sparse_24::unit_cols(in);
  FS_CHECK(units.size(0) == down && units.size(1) == across && units.size(2) == layout.words(),
           "units of a [", out, ", ", in, "] weight are [", down, ", ", across, ", ",
           int64_t{layout.words()}, "], not [", units.size(0), ", ", units.size(1), ", ",
           units.size(2), "]");
  FS_CHECK(down * across <= INT32_MAX, "a [", out, ", ", in, "] weight has too many units of ",
           "sparse_24: split the layer or leave it dense");
  FS_CHECK(reinterpret_cast<uintptr_t>(units.const_data_ptr()) % 16 == 0,
           "units must start on 16 bytes: pass a tensor of its own and not a slice, ",
           "e.g. units.clone()");
  FS_CHECK(scales || !layout.has_row_scales(), "weight_scale [", out, ", 1] is missing");
  if (!scales) return;
  FS_CHECK(layout.has_row_scales(), "these values have no weight_scale");
  check_tensor(*scales, "weight_scale", ScalarType::Float, 2);
  check_beside(*scales, "weight_scale", units, "units");
  FS_CHECK(scales->size(0) == out && scales->size(1) == 1, "weight_scale must be [", out,
           ", 1], not [", scales->size(0), ", ", scales->size(1), "]");
}

}  // namespace flashsparse
