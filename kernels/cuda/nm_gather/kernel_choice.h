// SPDX-License-Identifier: Apache-2.0
// Which kernel multiplies an nm_gather weight by how many tokens.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cuda/nm_gather/linear_plan.h"
#include "cuda/nm_gather/packed_plan.h"
#include "cuda/nm_gather/tiles_plan.h"
#include "cuda/plan/kernel.h"

namespace flashsparse::nm_gather {

// Share of the columns that are kept.
constexpr double kept_share(const Layout& layout) {
  return static_cast<double>(layout.panel_steps * kStep) / layout.panel_columns;
}

// Up to this many tokens each block transposes its own x; for more, one kernel transposes x once
// per call. Measured on an H200.
inline int64_t few_tokens(const Layout& layout, const Gpu& gpu) {
  constexpr double kDense = 0.35;
  return std::min<int64_t>(kept_share(layout) > kDense ? 32 : 16, max_tokens(layout, gpu));
}

// Up to this many tokens the sparse kernels are faster than unpacking the weight once. On an H200
// and an H100 they are for prompts of any length, by 1.1 to 11 times (nm_prompts.csv), unless half
// of the columns are kept and few rows share an index. Without the kernel for many tokens there is
// a launch for every 64, and quantized values have to be dequantized: those limits are estimates.
inline int64_t max_sparse_tokens(const Layout& layout, int64_t rows, int64_t cols, const Gpu& gpu) {
  constexpr double kHalf = 0.4;
  constexpr int64_t kSmall = 32 << 20;  // elements
  if (!tiles_fit(layout, gpu)) return rows * cols > kSmall ? 512 : 128;
  const int bits = bits_of(layout.value_type);
  const bool shares_widely = layout.unit_rows * layout.group_units >= 64;
  if (kept_share(layout) <= kHalf || (bits == 16 && shares_widely)) return INT32_MAX;
  return bits == 16 ? 2048 : bits == 8 ? 1024 : 512;
}

inline Kernel choose_kernel(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                            const Gpu& gpu, const TokenLimits& limits = {}) {
  if (tokens > (limits.sparse ? *limits.sparse : max_sparse_tokens(layout, rows, cols, gpu)))
    return Kernel::kUnpacked;
  if (tokens <= few_tokens(layout, gpu) || !tiles_fit(layout, gpu)) return Kernel::kFew;
  const bool packs = !packed_complaint(layout, cols, gpu) && packed_pays(layout, rows, tokens, gpu);
  return packs ? Kernel::kPacked : Kernel::kMany;
}

}  // namespace flashsparse::nm_gather
