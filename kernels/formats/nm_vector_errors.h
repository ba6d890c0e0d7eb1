// SPDX-License-Identifier: Apache-2.0
// Error messages for a block of nm_vector, from packers and validation of every device.
#pragma once
#include <algorithm>
#include <sstream>
#include <string>

#include "formats/nm_vector.h"

namespace flashsparse::nm_vector {

// "rows 32 to 63, columns 0 to 3"
inline std::string place_of(const Pattern& pattern, int64_t group, int64_t window, int64_t rows,
                            int64_t cols) {
  std::ostringstream text;
  const int64_t last_row = std::min(rows, (group + 1) * pattern.length) - 1;
  const int64_t last_col = std::min(cols, (window + 1) * pattern.m) - 1;
  if (last_row == group * pattern.length) {
    text << "row " << last_row;
  } else {
    text << "rows " << group * pattern.length << " to " << last_row;
  }
  text << ", columns " << window * pattern.m << " to " << last_col;
  return text.str();
}

// For a weight [rows, cols] that cannot be packed.
inline std::string breach_error(const Pattern& pattern, const Breach& breach, int64_t rows,
                                int64_t cols) {
  std::ostringstream text;
  text << "the weight breaks the pattern " << pattern.n << ":" << pattern.m << " (vector_length "
       << pattern.length << ") at " << place_of(pattern, breach.group, breach.window, rows, cols)
       << ": " << breach.columns << " columns have nonzeros, where " << pattern.n
       << " may. Remedy: prune it with `flashsparse prune --pattern " << pattern.n << ":"
       << pattern.m;
  if (pattern.length > 1) text << " --vector-length " << pattern.length;
  text << "`, or pack it as tiled_bitmap, which takes zeros anywhere";
  return text.str();
}

// For an invalid index, or for nonzeros past the edge of a weight [rows, cols].
inline std::string index_error(const Pattern& pattern, int64_t group, int64_t window, int64_t rows,
                               int64_t cols) {
  return "weight_index at " + place_of(pattern, group, window, rows, cols) +
         ": positions must ascend, lie in their window of " + std::to_string(pattern.m) +
         " columns, and have zeros beyond the weight's edge";
}

inline constexpr char kNanCode[] = "weight_packed has a code that is NaN";

}  // namespace flashsparse::nm_vector
