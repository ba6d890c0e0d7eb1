// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies an exact_units weight by how many tokens.
#pragma once
#include <cstdint>

#include "cuda/exact_units/linear_plan.h"
#include "cuda/plan/kernel.h"

namespace flashsparse::exact_units {

// Up to this many tokens the decode kernel, whose launches take 64 or 32 of them, is faster than
// unpacking the weight once: that moves 3.5 bytes a weight, and the library reads another two,
// where a launch reads 1.5. Calculated from these bytes, and not measured.
constexpr int64_t kMostSparseTokens = 128;

constexpr Kernel choose_kernel(int64_t tokens, const TokenLimits& limits = {}) {
  return tokens > limits.sparse.value_or(kMostSparseTokens) ? Kernel::kUnpacked : Kernel::kSparse;
}

}  // namespace flashsparse::exact_units
