// SPDX-License-Identifier: Apache-2.0
// A panel: 16 rows of a weight as the CPU kernels read them. Every unstructured format is converted
// to panels, at load or on the fly, before it is multiplied.
//
// One mask word covers 16 rows x 2 columns; bit 2*row + (col & 1). The kept values follow
// each other in mask order, bit 0 first. Expanding one mask word fills a 512-bit register with 16
// rows of a column pair: the operand of vdpbf16ps, whose sixteen fp32 lanes are sixteen output
// rows, so no horizontal sum is ever needed.
//
//   masks    uint32 [column pairs]
//   values   uint16, or uint32 for fp32, or nonzero int8 values [nonzeros], followed by kValueSlack
//            that can be read
#pragma once
#include <cstdint>

namespace flashsparse {

inline constexpr int kPanelRows = 16;
inline constexpr int kMaskCols = 2;
// A kernel loads the values of two mask words as a whole, however few of them are kept.
inline constexpr int64_t kValueSlack = 64;

constexpr int64_t panels(int64_t out_features) {
  return (out_features + kPanelRows - 1) / kPanelRows;
}
constexpr int64_t column_pairs(int64_t in_features) {
  return (in_features + kMaskCols - 1) / kMaskCols;
}

}  // namespace flashsparse
