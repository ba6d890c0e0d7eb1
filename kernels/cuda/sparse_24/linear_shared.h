// SPDX-License-Identifier: Apache-2.0
// The ring of a warp's weights in the shared memory of the linear kernel of sparse_24
// (cuda/mma_units/linear_shared.h). A stage: row_units units, as they are in global memory, each
// from a whole line of 128 bytes on, to which copies are faster.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// Bytes from one unit of a stage to the next.
FS_HOST_DEVICE constexpr uint32_t place_bytes(UnitLayout unit) {
  return (unit.bytes() + 127) & ~127u;
}

FS_HOST_DEVICE constexpr uint32_t ring_bytes(UnitLayout unit, int row_units, int stages) {
  return stages * row_units * place_bytes(unit);
}

}  // namespace flashsparse::sparse_24
