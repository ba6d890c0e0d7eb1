// SPDX-License-Identifier: Apache-2.0
// How nm_gather's prefill kernel for packed x (wgmma) divides its work: decided on the host from
// sizes alone, so that a CUDA graph can hold the decision.
//
// A block computes whole tiles of y, without split-K. The rows of a tile share an index: 128 rows,
// 64 for each of two warpgroups, or 64 rows, which both warpgroups multiply by different tokens.
// Tiles are numbered in bands of `band` columns of tiles, so that concurrent blocks read the same
// weights and the same x from the L2.
#pragma once
#include <cstdint>

#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "formats/nm_gather.h"

namespace flashsparse::nm_gather {

// The compiled shapes: X(tokens, rows, stages). packed_shape.h explains each.
#define FS_NM_PACKED_SHAPES(X) \
  X(128, 128, 16)              \
  X(256, 128, 10)              \
  X(128, 64, 10)               \
  X(256, 64, 5)

struct PackedShapeInfo {
  int tokens, rows, stages;

  constexpr int tile_tokens() const { return tokens * 128 / rows; }
};

#define FS_NM_PACKED_INFO(tokens, rows, stages) {tokens, rows, stages},
inline constexpr PackedShapeInfo kPackedShapes[] = {FS_NM_PACKED_SHAPES(FS_NM_PACKED_INFO)};
#undef FS_NM_PACKED_INFO
inline constexpr int kPackedShapeCount = sizeof kPackedShapes / sizeof kPackedShapes[0];

inline constexpr int kPackedRows = 128;  // of a tile: 64 for each of two warpgroups

struct PackedPlan {
  int shape;  // index into kPackedShapes
  int band;   // columns of tiles

  const PackedShapeInfo& info() const { return kPackedShapes[shape]; }
  int64_t row_tiles(int64_t rows) const { return ceil_div(rows, info().rows); }
  int64_t token_tiles(int64_t tokens) const { return ceil_div(tokens, info().tile_tokens()); }
  int64_t tiles(int64_t rows, int64_t tokens) const {
    return row_tiles(rows) * token_tiles(tokens);
  }
  // Why the kernel cannot run with this plan; null if it can.
  const char* complaint(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                        const Gpu& gpu) const;
};

// Why the kernel cannot multiply such weights on such a GPU, and what to use instead; null if it
// can.
const char* packed_complaint(const Layout& layout, int64_t cols, const Gpu& gpu);

// Whether the kernel is faster than the one that gathers from shared memory (tiles_plan.h), as
// measured on an H200: for more than 256 tokens, and from 65 on if 128 rows share an index and the
// tiles fill half of the SMs. For a layout and GPU without packed_complaint().
bool packed_pays(const Layout& layout, int64_t rows, int64_t tokens, const Gpu& gpu);

// Estimated clocks of a plan on an H200 at 1755 MHz, without the transposition of x.
double packed_clocks(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                     const PackedPlan& plan, const Gpu& gpu);

// The launch for tokens >= 1 and its cost in those clocks; then every launch that it was compared
// with. For a layout and GPU without packed_complaint().
Priced<PackedPlan> price_packed(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                                const Gpu& gpu);
std::vector<Priced<PackedPlan>> list_packed(const Layout& layout, int64_t rows, int64_t cols,
                                            int64_t tokens, const Gpu& gpu);

inline PackedPlan plan_packed(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                              const Gpu& gpu) {
  return price_packed(layout, rows, cols, tokens, gpu).launch;
}

}  // namespace flashsparse::nm_gather
