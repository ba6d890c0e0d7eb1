// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/panel.h"
#include "cpu/avx512/parts.h"

namespace flashsparse::cpu::avx512 {

int64_t count_nonzeros(const uint16_t* values, int64_t count) {
  int64_t nonzeros = 0, i = 0;
  for (; i + 32 <= count; i += 32) {
    nonzeros += __builtin_popcount(nonzero(_mm512_loadu_si512(values + i)));
  }
  return nonzeros +
         __builtin_popcount(nonzero(_mm512_maskz_loadu_epi16(lanes32(count - i), values + i)));
}

}  // namespace flashsparse::cpu::avx512
