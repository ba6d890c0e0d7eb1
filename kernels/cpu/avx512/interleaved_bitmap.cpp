// SPDX-License-Identifier: Apache-2.0
// Dense rows to mask words and values, and back, 16 rows x 32 columns at a time: transposed as
// 32-bit lanes, such a block is 16 column pairs, each as one mask word has it.
#include "cpu/avx512/parts.h"
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
    // No lane beyond those kept is written: the next panel's values may already be there.
    _mm512_mask_storeu_epi16(values, lanes32(kept), compress16(mask, row[i]));
    values += kept;
  }
  return values;
}

}  // namespace

namespace flashsparse::cpu::avx512 {

int64_t count_nonzeros(const uint16_t* values, int64_t count) {
  int64_t nonzeros = 0, i = 0;
  for (; i + 32 <= count; i += 32) {
    nonzeros += __builtin_popcount(nonzero(_mm512_loadu_si512(values + i)));
  }
  return nonzeros +
         __builtin_popcount(nonzero(_mm512_maskz_loadu_epi16(lanes32(count - i), values + i)));
}

uint16_t* pack_panel(const uint16_t* weight, int64_t stride, int rows, int64_t cols,
                     uint32_t* masks, uint16_t* values) {
  const int64_t pairs = (cols + 1) / 2;
  for (int64_t pair = 0; pair < pairs; pair += kBlockPairs) {
    Bits row[16];
    const __mmask32 lanes = lanes32(cols - 2 * pair);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      row[r] = r < rows ? _mm512_maskz_loadu_epi16(lanes, weight + r * stride + 2 * pair)
                        : _mm512_setzero_si512();
    }
    values = pack_block(row, pairs - pair, masks + pair, values);
  }
  return values;
}

uint16_t* pack_tile_panel(const uint16_t* tile, int rows, int cols, uint32_t* masks,
                          uint16_t* values) {
  const int64_t pairs = (cols + 1) / 2;
  for (int half = 0; half < 2 && half * kBlockPairs < pairs; ++half) {
    Bits row[16];
    const __mmask32 lanes = lanes32(cols - 32 * half);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      // 16-byte chunk c of row r is at chunk c ^ (r & 7): bit 2 of r swaps the halves of the row,
      // bits 1 and 0 swap the chunks within a half.
      Bits chunks = _mm512_loadu_si512(tile + r * 64 + 32 * (half ^ (r >> 2 & 1)));
      chunks = swap_chunks(chunks, r & 3);
      row[r] = _mm512_maskz_mov_epi16(r < rows ? lanes : 0, chunks);
    }
    values = pack_block(row, pairs - half * kBlockPairs, masks + half * kBlockPairs, values);
  }
  return values;
}

void unpack_panel(const Panel& panel, int rows, int64_t cols, uint16_t* weight, int64_t stride) {
  const int64_t pairs = (cols + 1) / 2;
  const uint16_t* values = panel.values;
  for (int64_t pair = 0; pair < pairs; pair += kBlockPairs) {
    Bits row[16];
#pragma GCC unroll 16
    for (int i = 0; i < kBlockPairs; ++i) {
      const uint32_t mask = pair + i < pairs ? panel.masks[pair + i] : 0;
      row[i] = mask ? expand(mask, values) : _mm512_setzero_si512();
      values += __builtin_popcount(mask);
    }
    transpose16x16(row);
    const __mmask32 lanes = lanes32(cols - 2 * pair);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      if (r < rows) _mm512_mask_storeu_epi16(weight + r * stride + 2 * pair, lanes, row[r]);
    }
  }
}

}  // namespace flashsparse::cpu::avx512
