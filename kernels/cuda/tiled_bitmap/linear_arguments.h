// SPDX-License-Identifier: Apache-2.0
// Arguments of the decode kernel of tiled_bitmap, all of them device memory.
#pragma once
#include <cstdint>

#include "cuda/mma_units/linear_arguments.h"

namespace flashsparse::tiled_bitmap {

// `units` is weight_packed. Pointers that the kernel for these operands does not need are null.
struct Arguments : mma_units::Arguments {
  const int32_t* offsets;  // of units, in lines
};

// Parameters of the launch, from the plan (linear_plan.h).
struct Cut : mma_units::Cut {
  uint32_t scratch_quarters;  // scratch of a unit
  uint32_t ring_bytes;        // ring of a warp
  bool x_first;               // x is there when the kernel begins: it is copied before any weight
};

}  // namespace flashsparse::tiled_bitmap
