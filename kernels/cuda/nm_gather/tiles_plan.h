// SPDX-License-Identifier: Apache-2.0
// How nm_gather's prefill kernel divides y into tiles: decided on the host from sizes alone, so
// that a CUDA graph can hold the decision.
//
// A block multiplies the rows of `row_warps` rows of warps by the tokens of its shape. Tiles are
// numbered along `band` row blocks, token block after token block, so that concurrent blocks share
// weights and x in the L2. If there are fewer blocks than SMs, K is divided into `splits`: on
// Hopper these are a cluster, which reduces through distributed shared memory; elsewhere the last
// block to arrive adds up the partial sums that all have written to memory.
#pragma once
#include <cstdint>

#include "cuda/nm_gather/transpose_x.h"
#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "formats/nm_gather.h"

namespace flashsparse::nm_gather {

// The compiled shapes: X(rows and tokens of a warp, warps along the tokens, most warps along the
// rows), for values of 16, 8 and 4 bits. A warp's rows share an index. tiles_shape.h explains each.
// Those for 32 tokens read half of a tile of x: they are for products of no more tokens.
#define FS_NM_TILES_SHAPES(X) \
  X(64, 64, 2, 4)             \
  X(64, 64, 1, 8)             \
  X(32, 128, 1, 8)            \
  X(32, 64, 2, 7)             \
  X(32, 64, 1, 16)            \
  X(32, 32, 1, 16)            \
  X(16, 128, 1, 14)           \
  X(16, 64, 1, 16)            \
  X(16, 32, 1, 16)
#define FS_NM_TILES_SHAPES_8(X) \
  X(64, 64, 2, 4)               \
  X(64, 64, 1, 8)               \
  X(32, 64, 2, 7)               \
  X(32, 64, 1, 14)              \
  X(32, 32, 1, 16)              \
  X(16, 64, 1, 16)              \
  X(16, 32, 1, 16)

#define FS_NM_TILES_SHAPES_4(X) \
  X(32, 64, 1, 14)              \
  X(32, 32, 1, 16)

struct TileShapeInfo {
  int value_bits, warp_rows, warp_tokens, token_warps, row_warps;

  constexpr int tokens() const { return warp_tokens * token_warps; }
  constexpr int x_tokens() const { return tokens() < kTileTokens ? kTileTokens : tokens(); }
  // Whether a warp's rows share an index in a layout.
  constexpr bool fits(const Layout& layout) const {
    const int shared = layout.unit_rows * layout.group_units;
    return value_bits == bits_of(layout.value_type) &&
           layout.unit_rows == (warp_rows < 32 ? warp_rows : 32) && shared % warp_rows == 0;
  }
};

#define FS_NM_TILES_INFO(...) {16, __VA_ARGS__},
#define FS_NM_TILES_INFO_8(...) {8, __VA_ARGS__},
#define FS_NM_TILES_INFO_4(...) {4, __VA_ARGS__},
inline constexpr TileShapeInfo kTileShapes[] = {FS_NM_TILES_SHAPES(FS_NM_TILES_INFO)
                                                    FS_NM_TILES_SHAPES_8(FS_NM_TILES_INFO_8)
                                                        FS_NM_TILES_SHAPES_4(FS_NM_TILES_INFO_4)};
#undef FS_NM_TILES_INFO
#undef FS_NM_TILES_INFO_8
#undef FS_NM_TILES_INFO_4
inline constexpr int kTileShapeCount = sizeof kTileShapes / sizeof kTileShapes[0];

// The first shape for values of some bits.
constexpr int first_tile_shape(int bits) {
  int shape = 0;
  while (kTileShapes[shape].value_bits != bits) ++shape;
  return shape;
}

inline constexpr int kCopyingWarps = 2;             // one for weights, one for x
inline constexpr int64_t kTileBarrierBytes = 1024;  // of shared memory: barriers and a flag
inline constexpr int kMaxTileStages = 63;           // of x and of weights in total

struct TilesPlan {
  int shape;          // index into kTileShapes
  int row_warps;      // warps along the rows
  int splits;         // of K
  int x_stages;       // of x, a section each
  int weight_stages;  // of weights, a pair of steps each
  int band;           // row blocks
  int cluster;        // blocks of a cluster: the splits, up to 8, or 1

  const TileShapeInfo& info() const { return kTileShapes[shape]; }
  int warps() const { return row_warps * info().token_warps; }
  int threads() const { return (warps() + kCopyingWarps) * 32; }
  int block_rows() const { return row_warps * info().warp_rows; }
  int64_t row_blocks(int64_t rows) const { return ceil_div(rows, block_rows()); }
  int64_t token_blocks(int64_t tokens) const { return ceil_div(tokens, info().tokens()); }
  int64_t blocks(int64_t rows, int64_t tokens) const {
    return row_blocks(rows) * token_blocks(tokens) * splits;
  }
  // Rows of a stage of x.
  static int64_t stage_rows(const Layout& layout);
  int64_t x_stage_bytes(const Layout& layout) const;
  int64_t weight_stage_bytes(const Layout& layout) const;
  int64_t y_bytes() const { return int64_t{warps()} * 8 * (info().warp_rows + 4) * sizeof(float); }
  int64_t shared_bytes(const Layout& layout) const;
  // Floats of the workspace for the partial sums of splits that are no cluster; arrival counters.
  int64_t partial_floats(int64_t rows, int64_t tokens) const;
  int64_t arrivals(int64_t rows, int64_t tokens) const;
  // Why a kernel cannot run with this plan; null if it can.
  const char* complaint(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                        const Gpu& gpu) const;
};

// Whether there is a shape for a layout.
bool tiles_fit(const Layout& layout, const Gpu& gpu);

// The launch and its cost in clocks; then every launch that it was compared with. Requires
// tiles_fit(layout, gpu).
Priced<TilesPlan> price_tiles(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                              const Gpu& gpu);
std::vector<Priced<TilesPlan>> list_tiles(const Layout& layout, int64_t rows, int64_t cols,
                                          int64_t tokens, const Gpu& gpu);

inline TilesPlan plan_tiles(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                            const Gpu& gpu) {
  return price_tiles(layout, rows, cols, tokens, gpu).launch;
}

}  // namespace flashsparse::nm_gather
