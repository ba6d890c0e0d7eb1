// SPDX-License-Identifier: Apache-2.0
// What a launch of sparse_24's decode kernel costs (cuda/mma_units/linear_search.h).
#pragma once
#include "cuda/mma_units/linear_search.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// The cost of a plan, fitted to 9,920 launches of 24 layers with 1, 8 and 16 tokens on an H200,
// after another kernel (sweep_24_few.csv): of those measured its choices are on average 1.4%
// slower than the fastest for native values and 4.0% for int4, and 3 to 6% for layers that it was
// not fitted to. Eight bits are fitted to 1,920 later launches of 16 layers with 8 and 16 tokens
// (sweep_24_few_8_bits.csv): 2.3%, and 3.1% with one token. The ratios are much the same on other
// GPUs. W8A8 has the rates of quantized values times 16-bit x, with half the bytes of x and half
// the MMAs: not fitted.
inline constexpr mma_units::LinearRates kNativeRates = {
    35.8e3, 47.5e3, 1110, 7.2, 0, 0, 0.021, 0.092, 0.86, 4.4, 82e3, 2.4, 0.18, 0.56, 0.026};
inline constexpr mma_units::LinearRates kEightBitRates = {
    36.8e3, 50e3, 1060, 32.5, 0, 0, 0.325, 0, 1.63, 2.36, 535e3, 0.3, 0.19, 0.36, 0};
inline constexpr mma_units::LinearRates kInt4Rates = {
    32.4e3, 52.4e3, 1070, 10.2, 95, 0.18, 0.21, 0.0099, 0.92, 1.89, 370e3, 1.08, 0.22, 0.27, 0.016};

inline const mma_units::LinearRates& linear_rates(UnitLayout unit) {
  return unit.type == ValueType::kNative ? kNativeRates
         : bits_of(unit.type) == 4       ? kInt4Rates
                                         : kEightBitRates;
}

}  // namespace flashsparse::sparse_24
