// SPDX-License-Identifier: Apache-2.0
// The weight ring of a warp in the shared memory of the decode kernel of sparse_24
// (cuda/mma_units/linear_shared.h). A stage is row_units units in their stored layout, each aligned
// to a line of 128 bytes, to which copies are faster.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// Distance of two units in a stage, in bytes.
FS_HOST_DEVICE constexpr uint32_t place_bytes(UnitLayout unit) {
  return (unit.bytes() + 127) & ~127u;
}

// What scales of groups are found by.
template <class Values>
struct UnitPlace {
  static constexpr UnitLayout kLayout = Values::kLayout;
  static constexpr uint32_t kScales = kLayout.scales(), kBytes = place_bytes(kLayout);
};

FS_HOST_DEVICE constexpr uint32_t ring_bytes(UnitLayout unit, int row_units, int stages) {
  return stages * row_units * place_bytes(unit);
}

}  // namespace flashsparse::sparse_24
