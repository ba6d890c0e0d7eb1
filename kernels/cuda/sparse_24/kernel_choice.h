// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies a sparse_24 weight by how many tokens.
#pragma once
#include <cstdint>

#include "cuda/plan/kernel.h"
#include "cuda/sparse_24/linear_plan.h"
#include "cuda/sparse_24/wgmma_plan.h"

namespace flashsparse::sparse_24 {

// Up to this many tokens the sparse kernels are mostly faster than unpacking the weight once.
constexpr int64_t max_sparse_tokens(const Gpu& gpu) { return gpu.has_wgmma() ? INT32_MAX : 192; }

// Up to this many tokens the kernel of linear_plan.h is faster than that of wgmma_plan.h after
// another kernel: on an H200 it takes 0.49 to 0.83 of the other's time with 8 tokens, 0.61 to 0.95
// with 16, 0.90 to 1.63 with 24 and 32, means over layers of each kind in layers.csv. Of tall
// layers of few shapes the other kernel is slow: there it takes 0.90 to 0.99 with 24 and 32.
constexpr int64_t few_tokens(int64_t rows, UnitLayout unit = {}) {
  constexpr int64_t kTall = 24576;
  return has_few_shapes(unit) && rows > kTall ? 32 : 16;
}

// Bytes of an element of quantized x in the kernel of linear_plan.h: 2 where tensor cores have no
// mma of its type, and multiply its numbers as 16-bit floats.
constexpr int few_x_bytes(UnitLayout unit, const Gpu& gpu) {
  return unit.type == ValueType::kFp8 && !gpu.has_fp8_mma() ? 2 : 1;
}

// The same if x is quantized, too: on an H200 the kernel of linear_plan.h takes 0.93 to 1.02 of
// the time of the other with 8 tokens, and 1.0 to 1.14 with 16; in a layer of 4096x4096 more
// (nm_values.csv).
constexpr int64_t rounded_few_tokens(int64_t rows, int64_t cols, int few_bytes) {
  return few_bytes == 2 || rows * cols > 32 << 20 ? 8 : 0;
}

// x_bytes of an element of x: 2, or 1 where it is quantized, which never unpacks the weight.
inline Kernel choose_kernel(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                            UnitLayout unit, int x_bytes = 2, const TokenLimits& limits = {}) {
  if (x_bytes == 1) {
    const int few_bytes = few_x_bytes(unit, gpu);
    const int64_t few = limits.few.value_or(rounded_few_tokens(rows, cols, few_bytes));
    return gpu.has_wgmma() && tokens > few ? Kernel::kMany : Kernel::kFew;
  }
  if (tokens > limits.sparse.value_or(max_sparse_tokens(gpu))) return Kernel::kUnpacked;
  const int64_t few = limits.few.value_or(few_tokens(rows, unit));
  return gpu.has_wgmma() && tokens > few ? Kernel::kMany : Kernel::kFew;
}

}  // namespace flashsparse::sparse_24
