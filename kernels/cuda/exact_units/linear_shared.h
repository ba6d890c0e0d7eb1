// SPDX-License-Identifier: Apache-2.0
// The weight ring of a warp in the shared memory of the decode kernel of exact_units
// (cuda/mma_units/linear_shared.h): first the units of all stages, then their slots.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/exact_units.h"

namespace flashsparse::exact_units {

// Bytes of a stage.
FS_HOST_DEVICE constexpr uint32_t stage_bytes(Kind kind, int row_units) {
  return row_units * unit_bytes(kind);
}
FS_HOST_DEVICE constexpr uint32_t slots_bytes(int row_units, int unit_slots) {
  return row_units * unit_slots * 4;
}

// Whole lines of 128 bytes, to which copies are faster.
FS_HOST_DEVICE constexpr uint32_t ring_bytes(Kind kind, int row_units, int unit_slots, int stages) {
  return (stages * (stage_bytes(kind, row_units) + slots_bytes(row_units, unit_slots)) + 127) &
         ~127u;
}

}  // namespace flashsparse::exact_units
