// SPDX-License-Identifier: Apache-2.0
// What the linear kernel of tiled_bitmap is given, all of it device memory.
#pragma once
#include <cstdint>

#include "cuda/mma_units/linear_arguments.h"

namespace flashsparse::tiled_bitmap {

// `units` is weight_packed. Pointers that the operands of a kernel do not need are null.
struct Arguments : mma_units::Arguments {
  const int32_t* offsets;  // of units, in lines
};

// Numbers of the plan (linear_plan.h).
struct Cut : mma_units::Cut {
  uint32_t scratch_quarters;  // of a unit
  uint32_t ring_bytes;        // of a warp
};

}  // namespace flashsparse::tiled_bitmap
