// SPDX-License-Identifier: Apache-2.0
// Arguments of the wgmma kernel of tiled_bitmap beside the tensor map of x, all of them device
// memory.
#pragma once
#include <cstdint>

#include "cuda/mma_units/wgmma_arguments.h"

namespace flashsparse::tiled_bitmap {

// `units` are the lines of weight_packed; `scales` are null unless values are int8.
struct WgmmaArguments : mma_units::WgmmaArguments {
  const int32_t* offsets;  // unit_offsets
  int ring_lines;          // ring of each warp in shared memory
};

}  // namespace flashsparse::tiled_bitmap
