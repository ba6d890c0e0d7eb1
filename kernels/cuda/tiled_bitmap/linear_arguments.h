// SPDX-License-Identifier: Apache-2.0
// What the linear kernel of tiled_bitmap is given, all of it device memory.
#pragma once
#include <cstdint>

#include "cuda/mma_units/linear_arguments.h"

namespace flashsparse::tiled_bitmap {

// `units` is weight_packed; `scales` is null where values are native; those of x are, and its sums,
// where it is not rounded.
struct Arguments : mma_units::CodesArguments {
  const int32_t* offsets;  // of units, in lines
};

// Numbers of the plan (linear_plan.h).
struct Cut : mma_units::Cut {
  uint32_t scratch_quarters;  // of a unit
  uint32_t ring_bytes;        // of a warp
};

}  // namespace flashsparse::tiled_bitmap
