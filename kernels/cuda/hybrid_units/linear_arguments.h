// SPDX-License-Identifier: Apache-2.0
// Arguments of the decode kernel of hybrid_units, all of them device memory.
#pragma once
#include <cstdint>

#include "cuda/mma_units/linear_arguments.h"

namespace flashsparse::hybrid_units {

// `units` is the stream.
struct Arguments : mma_units::Arguments {
  const int32_t* offsets;  // of units
};

}  // namespace flashsparse::hybrid_units
