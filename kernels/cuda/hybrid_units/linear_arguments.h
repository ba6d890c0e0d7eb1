// SPDX-License-Identifier: Apache-2.0
// Arguments of the kernels of hybrid_units, all of them device memory.
#pragma once
#include <cstdint>

#include "cuda/mma_units/linear_arguments.h"
#include "cuda/mma_units/wgmma_arguments.h"

namespace flashsparse::hybrid_units {

// `units` is the stream.
struct Arguments : mma_units::Arguments {
  const int32_t* offsets;  // of units
};
struct WgmmaArguments : mma_units::WgmmaArguments {
  const int32_t* offsets;
};

}  // namespace flashsparse::hybrid_units
