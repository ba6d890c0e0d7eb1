// SPDX-License-Identifier: Apache-2.0
// Converts dense rows to a panel, and back.
#include "cpu/interleaved_bitmap/kernels.h"

#include "cpu/avx512/panel.h"

namespace {

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

void unpack_panel(const flashsparse::cpu::Panel& panel, int rows, int64_t cols, uint16_t* weight,
                  int64_t stride) {
  const int64_t pairs = (cols + 1) / 2;
  const uint16_t* values = static_cast<const uint16_t*>(panel.values);
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

}  // namespace

namespace flashsparse::interleaved_bitmap::avx512 {
const Kernels kKernels = {pack_panel, unpack_panel, portable::pack_panel32,
                          portable::unpack_panel32};
}
