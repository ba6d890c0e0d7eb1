// SPDX-License-Identifier: Apache-2.0
// Packs elements to the mask words and values of a panel, 16 rows x 32 columns at a time:
// transposed as 32-bit lanes, such a block is 16 column pairs, each in the order of its mask word.
#pragma once
#include "cpu/avx512/vector.h"

namespace {

constexpr int kBlockPairs = 16;

FS_INLINE __mmask32 nonzero(Bits lanes) {
  return _mm512_test_epi16_mask(lanes, _mm512_set1_epi16(0x7fff));  // neither +0 nor -0
}

// Appends `pairs` column pairs of 16 rows; returns the new end of the values.
FS_INLINE uint16_t* pack_block(Bits (&row)[16], int64_t pairs, uint32_t* masks, uint16_t* values) {
  transpose16x16(row);
#pragma GCC unroll 16
  for (int i = 0; i < kBlockPairs; ++i) {
    if (i >= pairs) break;
    const uint32_t mask = nonzero(row[i]);
    const int kept = __builtin_popcount(mask);
    masks[i] = mask;
    // Lanes past the kept ones are not written: the next panel's values may already be there.
    _mm512_mask_storeu_epi16(values, lanes32(kept), compress16(mask, row[i]));
    values += kept;
  }
  return values;
}

}  // namespace
