// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies a hybrid_units weight by how many tokens.
#pragma once
#include <cstdint>

#include "cuda/hybrid_units/linear_plan.h"
#include "cuda/hybrid_units/wgmma_plan.h"
#include "cuda/plan/kernel.h"

namespace flashsparse::hybrid_units {

// Whether the kernel of wgmma_plan.h is there.
constexpr bool has_many(const Gpu& gpu, UnitLayout unit) {
  return gpu.has_wgmma() && has_wgmma(unit);
}

// Up to this many tokens the sparse kernels are faster than unpacking the weight once. With wgmma,
// measured on an H200, by two layers of four kinds: 0.87 to 1.07 of the other's time with 1,024
// tokens, 1.07 to 1.23 with 2,048. Without it, calculated from bytes: unpacking reads the units and
// writes two bytes a weight that the library reads, and each launch of 32 or 64 tokens reads the
// units.
constexpr int64_t max_sparse_tokens(const Gpu& gpu, UnitLayout unit) {
  return has_many(gpu, unit) ? 1024 : 128;
}

// Up to this many tokens the kernel of linear_plan.h is faster than that of wgmma_plan.h: on an
// H200, after another kernel, it takes 0.72 to 0.98 of the other's time with 16 tokens. With 32 it
// takes 0.88 to 1.0 of it for native values, and 1.01 to 1.30 for others (hybrid_units_sweep.csv).
constexpr int64_t few_tokens(UnitLayout unit) { return unit.type == ValueType::kNative ? 32 : 16; }

inline Kernel choose_kernel(int64_t tokens, const Gpu& gpu, UnitLayout unit,
                            const TokenLimits& limits = {}) {
  if (tokens > limits.sparse.value_or(max_sparse_tokens(gpu, unit))) return Kernel::kUnpacked;
  const bool is_many = has_many(gpu, unit) && tokens > limits.few.value_or(few_tokens(unit));
  return is_many ? Kernel::kMany : Kernel::kFew;
}

}  // namespace flashsparse::hybrid_units
