// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of hybrid_units. What a kernel takes for an address is the offsets,
// whose content the format validates; no word of the stream.
#pragma once
#include <optional>

#include "bindings/launch.h"
#include "bindings/mma_units.h"
#include "bindings/packed.h"
#include "cuda/hybrid_units/linear_plan.h"
#include "cuda/hybrid_units/wgmma_plan.h"
#include "formats/hybrid_units.h"

namespace flashsparse {

template <>
struct LaunchNumbers<hybrid_units::LinearPlan> : mma_units::LinearNumbers {};
template <>
struct LaunchNumbers<hybrid_units::WgmmaPlan> : mma_units::WgmmaNumbers {};

// Checks the stream, its offsets, and scales of rows, which must be absent if values have none.
inline void check_hybrid_units(const Tensor& units, const Tensor& offsets,
                               const std::optional<Tensor>& scales, int64_t out, int64_t in,
                               hybrid_units::UnitLayout layout) {
  check_tensor(units, "units", ScalarType::Int, 1);
  check_tensor(offsets, "unit_offsets", ScalarType::Int, 1);
  check_beside(offsets, "unit_offsets", units, "units");
  check_shape(out, in);
  const int64_t count = hybrid_units::unit_rows(out) * hybrid_units::unit_cols(in);
  FS_CHECK(count < INT32_MAX, "a [", out, ", ", in, "] weight has too many units of ",
           "hybrid_units: split the layer or leave it dense");
  FS_CHECK(offsets.size(0) == count + 1, "unit_offsets of a [", out, ", ", in, "] weight are [",
           count + 1, "], not [", offsets.size(0), "]");
  const int64_t bytes = units.size(0) * 4;
  const int64_t least = count * hybrid_units::unit_bytes(layout, false);
  const int64_t most = count * hybrid_units::unit_bytes(layout, true);
  FS_CHECK(least <= bytes && bytes <= most, "units of a [", out, ", ", in, "] weight take ", least,
           " to ", most, " bytes, not ", bytes);
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
