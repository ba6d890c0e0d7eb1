// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies an exact_units weight by how many tokens.
#pragma once
#include <cstdint>

#include "cuda/exact_units/linear_plan.h"
#include "cuda/exact_units/widen_24.h"
#include "cuda/plan/kernel.h"

namespace flashsparse::exact_units {

// Up to this many tokens the sparse kernels are faster than unpacking the weight once. Without
// wgmma: calculated from the bytes that either moves. With it, on an H200: of dense units
// 8192x28672 takes 366 us with 512 tokens, where the library takes 352 and unpacking, by its bytes,
// 196; with 1024 tokens 28672x4096 takes 453 us, by the best launch 382, and 424 unpacked
// (exact_units_many_sweep.csv, lossless_prompts.csv). Of 2:4 wgmma.sp multiplies either way, and
// units of sparse_24 are made where memory allows: 28672x4096 takes 290 us with 1024 tokens and 299
// by these in an earlier run, 589 and 532 with 2048 (exact_units_sweep.csv).
constexpr int64_t max_sparse_tokens(int64_t rows, int64_t cols, const Gpu& gpu, Kind kind) {
  if (!gpu.has_wgmma()) return 128;
  if (kind == Kind::kDense) return 512;
  return can_widen(rows, cols) ? 1024 : INT32_MAX;
}

// Up to this many tokens the kernel of linear_plan.h is faster than that of wgmma_plan.h, after
// another kernel on an H100: it takes 0.94 to 1.01 of the other's time with 16, 1.01 to 1.12 with
// 32 (with 1.3 us added to the other's times, which used PDL then).
inline constexpr int64_t kFewTokens = 16;

inline Kernel choose_kernel(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, Kind kind,
                            const TokenLimits& limits = {}) {
  if (tokens > limits.sparse.value_or(max_sparse_tokens(rows, cols, gpu, kind)))
    return Kernel::kUnpacked;
  return gpu.has_wgmma() && tokens > limits.few.value_or(kFewTokens) ? Kernel::kMany : Kernel::kFew;
}

}  // namespace flashsparse::exact_units
