// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies a hybrid_units weight by how many tokens.
#pragma once
#include <cstdint>

#include "cuda/plan/kernel.h"

namespace flashsparse::hybrid_units {

// Up to this many tokens the sparse kernel is faster than unpacking the weight once: that reads the
// units, writes two bytes a weight, and the library reads them, where each launch of 32 or 64
// tokens reads the units again. Calculated from these bytes, and not measured.
inline constexpr int64_t kMostSparseTokens = 128;

inline Kernel choose_kernel(int64_t tokens, const TokenLimits& limits = {}) {
  return tokens > limits.sparse.value_or(kMostSparseTokens) ? Kernel::kUnpacked : Kernel::kSparse;
}

}  // namespace flashsparse::hybrid_units
