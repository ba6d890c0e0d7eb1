// SPDX-License-Identifier: Apache-2.0
// Arguments of the decode kernel of exact_units, all of them device memory.
#pragma once
#include <cstdint>

#include "cuda/mma_units/linear_arguments.h"

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

}  // namespace flashsparse::exact_units
