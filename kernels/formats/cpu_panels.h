// SPDX-License-Identifier: Apache-2.0
// The two forms in which nm_vector runs on a CPU: entry j of 16 rows lies side by side, a register.
// Never on disk.
//
//   values     [panels][kept][16]            uint16 or uint32 of native values;
//              uint8 [panels][steps][16]     codes (formats/value_type.h). 8 bits: step j has entry
//              j
//                                            of 16 rows; 4 bits: entries 2j (low) and 2j + 1 (high
//                                            nibble)
//   scales     float [panels][groups][16]    of codes: of 16 rows, group after group
//
// nm_panels, where 16 rows or more share their columns:
//   columns    int32 [vectors][kept]         the column of entry j, for all rows of a vector
// An entry is one load of 16 weights and, for each token, one fused multiply-add with a broadcast
// activation. Entries beyond the weight's edge have column in_features, where kernels keep a zero.
//
// nm_rows, of codes where fewer rows share them:
//   positions  int32 [panels][words][16]     of 16 rows, bits [i * b, (i + 1) * b) of word k are
//   the
//                                            position of entry k * (32 / b) + i in its window
// A position takes b = 2 bits where m <= 4, 4 where m <= 16, else 8: a row's word is shifted by b
// from one entry to the next, and its low bits choose one of the activations of the window, which
// for b <= 4 lie in one register.
//
// Values of rows and entries beyond the edge are zeros.
#pragma once
#include <cstdint>

#include "formats/panel.h"

namespace flashsparse::cpu_panels {

constexpr int position_bits(int64_t m) { return m <= 4 ? 2 : m <= 16 ? 4 : 8; }
constexpr int64_t position_words(int64_t kept, int64_t m) {
  const int64_t entries = 32 / position_bits(m);  // of a word
  return (kept + entries - 1) / entries;
}

}  // namespace flashsparse::cpu_panels
