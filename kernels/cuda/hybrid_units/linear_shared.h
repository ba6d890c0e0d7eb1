// SPDX-License-Identifier: Apache-2.0
// The weight ring of a warp in the shared memory of the decode kernel of hybrid_units
// (cuda/mma_units/linear_shared.h). A stage has row_units places, each of which takes a unit of
// either kind: its vectors, and behind room for a dense one's the scales.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/hybrid_units.h"

namespace flashsparse::hybrid_units {

// Of a place: whole lines of 128 bytes, to which copies are faster.
FS_HOST_DEVICE constexpr uint32_t place_bytes(UnitLayout unit) {
  return (unit_bytes(unit, true) + 127) & ~127u;
}

template <class Values>
struct UnitPlace {
  static constexpr UnitLayout kLayout = Values::kLayout;
  static constexpr uint32_t kScales = vector_bytes(kLayout, true);
  static constexpr uint32_t kBytes = hybrid_units::place_bytes(kLayout);
};

// The same, from the second half of a dense unit on.
template <class Values>
struct SecondPlace : UnitPlace<Values> {
  static constexpr uint32_t kScales =
      UnitPlace<Values>::kScales - UnitPlace<Values>::kLayout.metadata();
};

FS_HOST_DEVICE constexpr uint32_t ring_bytes(UnitLayout unit, int row_units, int stages) {
  return stages * row_units * hybrid_units::place_bytes(unit);
}

}  // namespace flashsparse::hybrid_units
