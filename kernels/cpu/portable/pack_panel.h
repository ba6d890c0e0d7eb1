// SPDX-License-Identifier: Apache-2.0
// Elements to the mask words and values of a panel, in plain C++.
#pragma once
#include <cstdint>

#include "formats/zero.h"

namespace flashsparse::cpu::portable {

// Packs the elements that element(row, col) gives, of `rows` <= 16 rows. Returns the end of the
// values.
template <typename Value, typename Element>
Value* pack_elements(int rows, int64_t cols, uint32_t* masks, Value* values, Element element) {
  for (int64_t col = 0; col < cols; col += 2) {
    const int width = col + 1 < cols ? 2 : 1;
    uint32_t mask = 0;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < width; ++c) {
        const Value bits = element(r, col + c);
        const uint32_t kept = !is_zero(bits);
        mask |= kept << (2 * r + c);
        if (kept) *values++ = bits;
      }
    }
    *masks++ = mask;
  }
  return values;
}

}  // namespace flashsparse::cpu::portable
