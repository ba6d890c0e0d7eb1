// SPDX-License-Identifier: Apache-2.0
// What the wgmma kernel of tiled_bitmap is given beside the map of x, all of it device memory.
#pragma once
#include <cstdint>

#include "cuda/mma_units/wgmma_arguments.h"

namespace flashsparse::tiled_bitmap {

// `units` are the lines of weight_packed; there are no scales.
struct WgmmaArguments : mma_units::WgmmaArguments {
  const int32_t* offsets;  // unit_offsets
  int ring_lines;          // of the plan: of each warp, in shared memory
};

}  // namespace flashsparse::tiled_bitmap
