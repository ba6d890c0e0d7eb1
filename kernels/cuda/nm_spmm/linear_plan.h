// SPDX-License-Identifier: Apache-2.0
// How nm_spmm's kernel divides its work: decided on the host from sizes alone, so that a CUDA graph
// can hold the decision.
//
// A block computes a tile of y, m_s tokens x n_s rows in the paper's letters, over all kept columns
// or, if there are too few tiles for the SMs, over one of `splits` parts of them.
#pragma once
#include <cstdint>

#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "formats/nm_spmm.h"

namespace flashsparse::nm_spmm {

// The compiled kernels: X(tokens and rows of a block, tokens and rows of a thread, lanes of a warp
// along tokens, stages, packing, resident blocks per SM that limit the registers). The tiles are
// those of the paper's Table I, the large one with each of its optimisations (V1: neither, V2:
// packing, V3: stages as well); before them tiles for few tokens, after them one for SMs with 128
// FMA units, whose shared memory cannot feed 8x8 tiles.
#define FS_NM_SPMM_KERNELS(X)        \
  X(8, 128, 8, 4, 1, 4, false, 12)   \
  X(16, 128, 16, 4, 1, 4, false, 12) \
  X(32, 32, 4, 4, 4, 2, false, 8)    \
  X(32, 32, 4, 4, 4, 2, true, 8)     \
  X(32, 64, 8, 4, 4, 2, false, 8)    \
  X(32, 64, 8, 4, 4, 2, true, 8)     \
  X(64, 64, 8, 8, 8, 2, false, 6)    \
  X(64, 64, 8, 8, 8, 2, true, 6)     \
  X(64, 128, 8, 8, 8, 1, false, 4)   \
  X(64, 128, 8, 8, 8, 1, true, 4)    \
  X(64, 128, 8, 8, 8, 2, false, 4)   \
  X(64, 128, 8, 8, 8, 2, true, 3)    \
  X(128, 128, 16, 8, 8, 2, false, 2) \
  X(128, 128, 16, 8, 8, 2, true, 2)

struct KernelInfo {
  int tokens, rows;                // of a block: m_s, n_s
  int thread_tokens, thread_rows;  // m_t, n_t
  int token_lanes;                 // of a warp's 32
  int stages;                      // 1: not pipelined
  bool packing;
  int blocks;  // per SM

  constexpr int threads() const { return tokens * rows / (thread_tokens * thread_rows); }
  constexpr bool pipelined() const { return stages > 1; }
};

#define FS_NM_SPMM_INFO(...) {__VA_ARGS__},
inline constexpr KernelInfo kKernels[] = {FS_NM_SPMM_KERNELS(FS_NM_SPMM_INFO)};
#undef FS_NM_SPMM_INFO
inline constexpr int kKernelCount = sizeof kKernels / sizeof kKernels[0];

inline constexpr int64_t kFlagBytes = 16;   // of shared memory
inline constexpr int kTransposeTile = 32;   // tokens and columns of a block of the transposition
inline constexpr int64_t kMaxXt = 1 << 27;  // most floats of x^T in one launch

// Byte offsets of a stage's parts in shared memory, and of the next stage.
struct Stage {
  uint32_t values, index, columns, bytes;
};

struct Plan {
  int kernel;  // index into kKernels
  int splits;

  const KernelInfo& info() const { return kKernels[kernel]; }
  // Columns of x in a block's shared memory, per panel.
  int x_columns(const Layout& layout) const {
    return info().packing ? layout.capacity : layout.columns;
  }
  Stage stage(const Layout& layout) const;
  int64_t shared_bytes(const Layout& layout) const;
  int64_t tiles(int64_t rows, int64_t tokens) const {
    return ceil_div(rows, info().rows) * ceil_div(tokens, info().tokens);
  }
  // Floats of the workspaces: partial sums of splits; x^T, [columns of all panels][whole tiles].
  int64_t partial_floats(int64_t rows, int64_t tokens) const;
  int64_t xt_stride(int64_t tokens) const {
    return ceil_div(tokens, info().tokens) * info().tokens;
  }
  int64_t xt_floats(const Layout& layout, int64_t cols, int64_t tokens) const {
    return layout.panels(cols) * layout.columns * xt_stride(tokens);
  }
  // Why a kernel cannot run with this plan; null if it can.
  const char* complaint(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                        const Gpu& gpu) const;
};

// Most tokens of one launch, so that x^T and its grid stay within bounds: a multiple of every
// kernel's tile.
int64_t max_tokens(const Layout& layout, int64_t cols);

// The launch and its cost in clocks; then every launch that it was compared with.
Priced<Plan> price_linear(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                          const Gpu& gpu);
std::vector<Priced<Plan>> list_linear(const Layout& layout, int64_t rows, int64_t cols,
                                      int64_t tokens, const Gpu& gpu);

inline Plan plan_linear(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                        const Gpu& gpu) {
  return price_linear(layout, rows, cols, tokens, gpu).launch;
}

}  // namespace flashsparse::nm_spmm
