// SPDX-License-Identifier: Apache-2.0
// The forms in which patterns run on a CPU: entry j of 16 rows lies side by side, a register. Of
// nm_vector nm_panels and nm_rows, of hybrid_24 hybrid_panels. Never on disk.
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
// hybrid_panels, of codes in units of 16 rows x 256 columns of two kinds:
//   kinds      uint8 [panels][units]         0: 2:4, other than 0: dense
//   values     uint8 [steps][16]             of all panels after each other, unit after unit; each
//                                            window of 4 columns has 2 entries, or 4 in dense units
//   positions  int32 [words][16]             as of nm_rows with m = 4, of 2:4 units alone, each of
//                                            which begins a word
// Where a panel begins follows from the kinds before it, which the ops count: no offset is stored.
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

// Of hybrid_panels.
inline constexpr int64_t kUnitWindows = 64;
constexpr int64_t windows_of(int64_t in_features) { return (in_features + 3) / 4; }
constexpr int64_t units_of(int64_t in_features) {
  return (windows_of(in_features) + kUnitWindows - 1) / kUnitWindows;
}

// Entries of a row, and words of positions, of units in a panel.
struct HybridSizes {
  int64_t entries = 0, words = 0;
};
inline HybridSizes hybrid_sizes(const uint8_t* kinds, int64_t in_features) {
  HybridSizes sizes;
  const int64_t windows = windows_of(in_features);
  for (int64_t first = 0; first < windows; first += kUnitWindows) {
    const int64_t left = windows - first;
    const int64_t own = left < kUnitWindows ? left : kUnitWindows;
    if (kinds[first / kUnitWindows]) {
      sizes.entries += 4 * own;
    } else {
      sizes.entries += 2 * own;
      sizes.words += position_words(2 * own, 4);
    }
  }
  return sizes;
}

}  // namespace flashsparse::cpu_panels
