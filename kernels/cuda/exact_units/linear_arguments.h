// SPDX-License-Identifier: Apache-2.0
// Arguments of the kernels of exact_units, all of them device memory.
#pragma once
#include <cstdint>

#include "cuda/mma_units/linear_arguments.h"
#include "cuda/mma_units/wgmma_arguments.h"

namespace flashsparse::exact_units {

// Exceptions, as formats/exact_units.h has them.
struct Exceptions {
  const uint32_t* slots;    // 16-byte aligned
  const uint32_t* list;     // two words each, 8-byte aligned
  const uint32_t* offsets;  // of rows of units
  int unit_slots;           // words of a unit
};

// `scales` are never null.
struct Arguments : mma_units::Arguments {
  Exceptions exceptions;
};

// `x` beside its tensor map: of single columns.
struct WgmmaArguments : mma_units::WgmmaArguments {
  Exceptions exceptions;
  const uint16_t* x;
  int x_stride;  // from one row of x to the next, in 16 bits
};

}  // namespace flashsparse::exact_units
