// SPDX-License-Identifier: Apache-2.0
// The rules that invalid tiled_bitmap tensors break, and the error messages, for every device.
#pragma once
#include <string>

#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

// Verdict on a unit that breaks a rule, instead of its number of values.
inline constexpr int32_t kBadOffsets = -1;  // offsets_error tells which; a GPU only finds units
inline constexpr int32_t kKeepsOutside = -2;
inline constexpr int32_t kSharedColumn = -3;
inline constexpr int32_t kLeavesColumn = -4;

// The first rule that offsets [units + 1] break, or nothing.
inline std::string offsets_error(const int32_t* offsets, int64_t units, int64_t num_lines,
                                 int item_bytes) {
  if (offsets[0] != 0) return "unit_offsets[0] is " + std::to_string(offsets[0]) + ", not 0";
  for (int64_t index = 0; index < units; ++index) {
    const int64_t lines = static_cast<int64_t>(offsets[index + 1]) - offsets[index];
    if (lines >= kHeadLines && lines <= most_lines(item_bytes)) continue;
    return "unit_offsets[" + std::to_string(index + 1) +
           "] = " + std::to_string(offsets[index + 1]) + " gives unit " + std::to_string(index) +
           " " + std::to_string(lines) + " lines, and a unit has " + std::to_string(kHeadLines) +
           " to " + std::to_string(most_lines(item_bytes));
  }
  if (offsets[units] != num_lines) {
    return "unit_offsets ends at " + std::to_string(offsets[units]) + " lines, weight_packed has " +
           std::to_string(num_lines);
  }
  return {};
}

// For a unit whose offsets are valid.
inline std::string unit_error(int64_t unit, int64_t verdict) {
  return "unit " + std::to_string(unit) +
         (verdict == kKeepsOutside   ? " keeps an element beyond the edges of the weight"
          : verdict == kSharedColumn ? " has two runs that begin in the same column"
                                     : " has a run that ends behind its lines");
}

}  // namespace flashsparse::tiled_bitmap
