// SPDX-License-Identifier: Apache-2.0
// What the units of sparse_24 are that widen_24.cuh makes.
#pragma once
#include "formats/exact_units.h"
#include "formats/sparse_24.h"

namespace flashsparse::exact_units {

inline constexpr sparse_24::UnitLayout kWidened{};  // bfloat16

// Whether those of a weight take no more memory than other workspaces may.
constexpr bool can_widen(int64_t rows, int64_t cols) {
  constexpr int64_t kMostBytes = 256 << 20;
  return unit_rows(rows) * unit_cols(cols) * kWidened.bytes() <= kMostBytes;
}

}  // namespace flashsparse::exact_units
