// SPDX-License-Identifier: Apache-2.0
#include "cpu/portable/parts.h"
#include "formats/zero.h"

namespace flashsparse::cpu::portable {

int64_t count_nonzeros(const uint16_t* values, int64_t count) {
  int64_t nonzeros = 0;
  while (count > 0) {  // runs short enough for 16-bit counters, which fill the vector lanes
    const int64_t run = count < 32768 ? count : 32768;
    uint16_t in_run = 0;
    for (int64_t i = 0; i < run; ++i) in_run += !is_zero(values[i]);
    nonzeros += in_run;
    values += run;
    count -= run;
  }
  return nonzeros;
}

}  // namespace flashsparse::cpu::portable
