// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies an exact_units weight by how many tokens.
#pragma once
#include <cstdint>

#include "cuda/exact_units/linear_plan.h"
#include "cuda/plan/kernel.h"

namespace flashsparse::exact_units {

// Up to this many tokens the sparse kernels are faster than unpacking the weight once: that moves
// 3.5 bytes a weight (2 of 2:4, where wgmma.sp multiplies units of sparse_24), and the library
// reads another two, where a launch of 64 tokens by mma, or of 128 by wgmma, reads 1.5 (0.9).
// Calculated from these bytes and the costs of launches, and not measured.
constexpr int64_t max_sparse_tokens(const Gpu& gpu, Kind kind) {
  return !gpu.has_wgmma() ? 128 : kind == Kind::k24 ? 768 : 512;
}

// Up to this many tokens the kernel of linear_plan.h is faster than that of wgmma_plan.h, after
// another kernel on an H100: it takes 0.94 to 1.01 of the other's time with 16, 1.01 to 1.12 with
// 32 (with 1.3 us added to the other's times, which used PDL then).
inline constexpr int64_t kFewTokens = 16;

inline Kernel choose_kernel(int64_t tokens, const Gpu& gpu, Kind kind,
                            const TokenLimits& limits = {}) {
  if (tokens > limits.sparse.value_or(max_sparse_tokens(gpu, kind))) return Kernel::kUnpacked;
  return gpu.has_wgmma() && tokens > limits.few.value_or(kFewTokens) ? Kernel::kMany : Kernel::kFew;
}

}  // namespace flashsparse::exact_units
