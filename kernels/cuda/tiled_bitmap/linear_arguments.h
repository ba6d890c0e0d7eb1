// SPDX-License-Identifier: Apache-2.0
// What the linear kernel of tiled_bitmap is given, all of it device memory.
#pragma once
#include <cstdint>

#include "cuda/sparse_24/linear_arguments.h"

namespace flashsparse::tiled_bitmap {

// `units` is weight_packed, `scales` null.
struct Arguments : sparse_24::Arguments {
  const int32_t* offsets;  // of units, in lines
};

// Numbers of the plan (linear_plan.h).
struct Cut : sparse_24::Cut {
  uint32_t ring_bytes;  // of a warp's weights
};

}  // namespace flashsparse::tiled_bitmap
