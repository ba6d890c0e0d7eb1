// SPDX-License-Identifier: Apache-2.0
// Interleaved bitmap: the form in which every unstructured format runs on a CPU. Never on disk.
//
// A panel is 16 rows. Within it, one mask word covers 16 rows x 2 columns; bit 2*row + (col & 1).
// The kept 16-bit values of a panel follow each other in mask order, bit 0 first. Expanding one
// mask word fills a 512-bit register with 16 rows of a column pair: the operand of vdpbf16ps, whose
// sixteen fp32 lanes are sixteen output rows, so no horizontal sum is ever needed.
//
//   masks          uint32 [panels][column pairs]
//   values         uint16 [nonzeros + kValueSlack]   panel after panel
//   panel_offsets  int64  [panels + 1]               first value of each panel
#pragma once
#include <cstdint>

namespace flashsparse::interleaved_bitmap {

inline constexpr int kPanelRows = 16;
inline constexpr int kMaskCols = 2;
// A kernel loads 32 values wherever a mask word starts, however few of them it keeps.
inline constexpr int64_t kValueSlack = 32;

constexpr int64_t panels(int64_t out_features) {
  return (out_features + kPanelRows - 1) / kPanelRows;
}
constexpr int64_t column_pairs(int64_t in_features) {
  return (in_features + kMaskCols - 1) / kMaskCols;
}

}  // namespace flashsparse::interleaved_bitmap
