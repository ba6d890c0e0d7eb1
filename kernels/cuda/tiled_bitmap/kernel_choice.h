// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies a tiled_bitmap weight by how many tokens.
#pragma once
#include <cstdint>

#include "cuda/plan/kernel.h"
#include "cuda/tiled_bitmap/linear_plan.h"
#include "cuda/tiled_bitmap/wgmma_plan.h"

namespace flashsparse::tiled_bitmap {

// Up to this many tokens the sparse kernels are mostly faster than unpacking the weight once. Where
// x is quantized, too, and there is no wgmma, that is the kernel for few: the library's int8
// product takes nearly as long for 65 tokens as for 128.
constexpr int64_t max_sparse_tokens(int64_t rows, int64_t cols, const Gpu& gpu, Operands operands) {
  if (gpu.has_wgmma()) return 1024;
  return operands == Operands::kRounded ? (rows * cols > 96 << 20 ? 192 : 64) : 128;
}

// Up to this many tokens the kernel of linear_plan.h is faster than that of wgmma_plan.h after
// another kernel, on an H200 and an H100 (layers.csv, bitmap_codes.csv), of every kind of operands.
// The latter takes the same time for any number up to 64, the former reads the weight once for each
// 32.
inline constexpr int64_t kFewTokens = 32;

inline Kernel choose_kernel(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                            Operands operands, const TokenLimits& limits = {}) {
  if (tokens > limits.sparse.value_or(max_sparse_tokens(rows, cols, gpu, operands)))
    return Kernel::kUnpacked;
  return gpu.has_wgmma() && tokens > limits.few.value_or(kFewTokens) ? Kernel::kMany : Kernel::kFew;
}

}  // namespace flashsparse::tiled_bitmap
