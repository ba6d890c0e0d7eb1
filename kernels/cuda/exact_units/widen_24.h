// SPDX-License-Identifier: Apache-2.0
// What the units of sparse_24 are that widen_24.cuh makes.
#pragma once
#include "formats/sparse_24.h"

namespace flashsparse::exact_units {

inline constexpr sparse_24::UnitLayout kWidened{};  // bfloat16

}  // namespace flashsparse::exact_units
