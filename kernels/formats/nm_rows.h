// SPDX-License-Identifier: Apache-2.0
// nm_rows: the form in which nm_vector with codes of 8 or 4 bits runs on a CPU where fewer than 16
// rows share their columns. Never on disk.
//
//   values     uint8 [panels][steps][16]          8 bits: step j has entry j of 16 rows;
//                                                 4 bits: entries 2j (low) and 2j + 1 (high nibble)
//   positions  int32 [panels][words][16]          of 16 rows, bits [i * b, (i + 1) * b) of word k
//                                                 are the position of entry k * (32 / b) + i
//   scales     float [panels][groups][16]         of 16 rows, group after group
//
// A position takes b = 2 bits where m <= 4, 4 where m <= 16, else 8: a row's word is shifted by b
// from one entry to the next, and its low bits choose one of the activations of the window, which
// for b <= 4 lie in one register. Rows and entries beyond the edge are zeros.
#pragma once
#include <cstdint>

#include "formats/panel.h"

namespace flashsparse::nm_rows {

constexpr int position_bits(int64_t m) { return m <= 4 ? 2 : m <= 16 ? 4 : 8; }
constexpr int64_t position_words(int64_t kept, int64_t m) {
  const int64_t entries = 32 / position_bits(m);  // of a word
  return (kept + entries - 1) / entries;
}

}  // namespace flashsparse::nm_rows
