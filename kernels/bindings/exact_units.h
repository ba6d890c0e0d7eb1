// SPDX-License-Identifier: Apache-2.0
// Argument checks of the ops of exact_units. What a kernel takes for an address is the list of
// exceptions and its offsets, whose content the format validates; no word of the units, and no
// slot.
#pragma once

#include "bindings/launch.h"
#include "bindings/mma_units.h"
#include "bindings/packed.h"
#include "cuda/exact_units/linear_plan.h"
#include "cuda/exact_units/wgmma_plan.h"
#include "formats/exact_units.h"

namespace flashsparse {

template <>
struct LaunchNumbers<exact_units::LinearPlan> : mma_units::LinearNumbers {};

template <>
struct LaunchNumbers<exact_units::WgmmaPlan> : mma_units::WgmmaNumbers {};

// A weight's tensors, in the order in which ops take them.
struct ExactUnits {
  const Tensor &units, &scales, &slots, &list, &offsets;

  int unit_slots() const { return static_cast<int>(slots.size(2)); }
  exact_units::Kind kind() const {
    using exact_units::Kind;
    return units.size(2) == exact_units::unit_words(Kind::k24) ? Kind::k24 : Kind::kDense;
  }
};

inline void check_exact_units(const ExactUnits& t, int64_t out, int64_t in) {
  check_tensor(t.units, "units", ScalarType::Int, 3);
  check_tensor(t.scales, "row_scales", ScalarType::Float, 2);
  check_tensor(t.slots, "slots", ScalarType::Int, 3);
  check_tensor(t.list, "listed", ScalarType::Int, 2);
  check_tensor(t.offsets, "listed_offsets", ScalarType::Int, 1);
  check_beside(t.scales, "row_scales", t.units, "units");
  check_beside(t.slots, "slots", t.units, "units");
  check_beside(t.list, "listed", t.units, "units");
  check_beside(t.offsets, "listed_offsets", t.units, "units");
  check_shape(out, in);
  const int64_t down = exact_units::unit_rows(out), across = exact_units::unit_cols(in);
  FS_CHECK(down * across <= INT32_MAX, "a [", out, ", ", in, "] weight has too many units of ",
           "exact_units: split the layer or leave it dense");
  const auto check_units = [&](const Tensor& tensor, const char* name, int64_t words) {
    FS_CHECK(tensor.size(0) == down && tensor.size(1) == across && tensor.size(2) == words, name,
             " of a [", out, ", ", in, "] weight are [", down, ", ", across, ", ", words,
             "], not [", tensor.size(0), ", ", tensor.size(1), ", ", tensor.size(2), "]");
    FS_CHECK(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0, name,
             " must start on 16 bytes: pass a tensor of its own and not a slice, e.g. ", name,
             ".clone()");
  };
  check_units(t.units, "units", exact_units::unit_words(t.kind()));
  FS_CHECK(exact_units::is_slots(t.slots.size(2)), "a unit has 4, 8 or 16 slots, not ",
           t.slots.size(2));
  check_units(t.slots, "slots", t.slots.size(2));
  FS_CHECK(t.scales.size(0) == out && t.scales.size(1) == 1, "row_scales must be [", out,
           ", 1], not [", t.scales.size(0), ", ", t.scales.size(1), "]");
  FS_CHECK(t.list.size(1) == 2, "listed must be [room, 2], not [", t.list.size(0), ", ",
           t.list.size(1), "]");
  FS_CHECK(t.offsets.size(0) == down + 1, "listed_offsets must be [", down + 1, "], not [",
           t.offsets.size(0), "]");
}

}  // namespace flashsparse
