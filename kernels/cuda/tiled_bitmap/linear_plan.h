// SPDX-License-Identifier: Apache-2.0
// How tiled_bitmap's decode kernel divides its work: decided on the host from sizes alone, so that
// a CUDA graph can hold the decision. The density is derived from the tensor sizes.
//
// A block has row_warps x column_warps warps. In one step it multiplies row_warps * row_units
// blocks of 16 rows by column_warps blocks of 256 columns. The steps of all row tiles, tile after
// tile, are numbered linearly, and every block takes an equal range of them (stream-K).
#pragma once
#include <cstdint>

#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "cuda/tiled_bitmap/operands.h"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

// The compiled shapes: X(most tokens, blocks of 16 rows that a warp multiplies at once, most warps
// of a thread block besides the one that copies x, whether weights are decoded into shared memory
// before they are multiplied). The number of warps limits the registers of a thread.
#define FS_TILED_BITMAP_SHAPES(X) \
  X(8, 1, 23, 0)                  \
  X(8, 2, 15, 0)                  \
  X(8, 2, 15, 1)                  \
  X(16, 1, 19, 0)                 \
  X(16, 2, 15, 0)                 \
  X(16, 2, 15, 1)                 \
  X(32, 1, 17, 0)                 \
  X(32, 2, 11, 0)                 \
  X(32, 2, 11, 1)                 \
  X(64, 1, 11, 0)                 \
  X(64, 2, 7, 0)

// The same for quantized values, which leave room for more warps.
#define FS_TILED_BITMAP_CODES_SHAPES(X) \
  X(8, 1, 23, 0)                        \
  X(8, 2, 19, 0)                        \
  X(16, 1, 19, 0)                       \
  X(16, 2, 15, 0)                       \
  X(32, 1, 16, 0)                       \
  X(32, 2, 11, 0)                       \
  X(64, 1, 13, 0)                       \
  X(64, 2, 7, 0)

struct ShapeInfo {
  int tokens, row_units, warps;
  bool spreads;
};

struct Shapes {
  const ShapeInfo* all;
  int count;

  constexpr const ShapeInfo* begin() const { return all; }
  constexpr const ShapeInfo* end() const { return all + count; }
};

#define FS_TILED_BITMAP_SHAPE_INFO(tokens, row_units, warps, spreads) \
  {tokens, row_units, warps, spreads != 0},
inline constexpr ShapeInfo kShapes[] = {FS_TILED_BITMAP_SHAPES(FS_TILED_BITMAP_SHAPE_INFO)};
inline constexpr ShapeInfo kCodesShapes[] = {
    FS_TILED_BITMAP_CODES_SHAPES(FS_TILED_BITMAP_SHAPE_INFO)};
#undef FS_TILED_BITMAP_SHAPE_INFO

constexpr Shapes shapes_of(Operands operands) {
  return operands == Operands::kNative
             ? Shapes{kShapes, static_cast<int>(sizeof kShapes / sizeof kShapes[0])}
             : Shapes{kCodesShapes, static_cast<int>(sizeof kCodesShapes / sizeof kCodesShapes[0])};
}

// Most tokens of one launch: x of more does not fit in 99 KB of shared memory.
constexpr int max_tokens(const Gpu& gpu) { return gpu.shared_bytes > 128 << 10 ? 64 : 32; }

// An int32 accumulator holds the sum of this many int8 products.
inline constexpr int64_t kMostRoundedCols = 1 << 17;

struct LinearPlan {
  int shape;                    // index into shapes_of(operands)
  int row_warps, column_warps;  // of a block
  int scratch_quarters;         // of the decoded weights, four value lines each; 0 for no scratch
  int x_stages;                 // of the ring of x in shared memory
  int ring_lines;               // of a warp's ring of weights, 128 bytes each
  int blocks;
  int is_early;  // 1: programmatic dependent launch (Hopper)
  Operands operands = Operands::kNative;

  const ShapeInfo& info() const { return shapes_of(operands).all[shape]; }
  int warps() const { return row_warps * column_warps; }
  int threads() const { return (warps() + 1) * 32; }
  // Row tiles of a block, and the steps along one.
  int64_t sets(int64_t rows) const {
    const int64_t units = int64_t{row_warps} * info().row_units;
    return (unit_rows(rows) + units - 1) / units;
  }
  int64_t set_steps(int64_t cols) const {
    return (unit_cols(cols) + column_warps - 1) / column_warps;
  }
  // Whether several blocks share a row tile, so that their partial sums have to be added up.
  bool shares_sets(int64_t rows) const { return sets(rows) % blocks != 0; }
  // What a launch needs besides its tensors: arrival counters, floats of the workspace, and dynamic
  // shared memory.
  int64_t arrivals(int64_t rows) const { return shares_sets(rows) ? sets(rows) * row_warps : 0; }
  int64_t partial_floats(int64_t rows) const {
    const int64_t slot = int64_t{row_warps} * info().row_units * kUnitRows * info().tokens;
    return shares_sets(rows) ? 2 * blocks * slot : 0;
  }
  int64_t shared_bytes() const;

  // The rule that the plan breaks for a product of this size, or null. A launch needs null.
  const char* broken_rule(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) const;
};

// The launch for a weight of `lines` in all and tokens in [1, max_tokens(gpu)], and its cost in
// microseconds; then every launch that it was compared with.
Priced<LinearPlan> price_linear(int64_t rows, int64_t cols, int64_t lines, int64_t tokens,
                                const Gpu& gpu, Operands operands = Operands::kNative);
std::vector<Priced<LinearPlan>> list_linear(int64_t rows, int64_t cols, int64_t lines,
                                            int64_t tokens, const Gpu& gpu,
                                            Operands operands = Operands::kNative);

inline LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t lines, int64_t tokens,
                              const Gpu& gpu, Operands operands = Operands::kNative) {
  return price_linear(rows, cols, lines, tokens, gpu, operands).launch;
}

}  // namespace flashsparse::tiled_bitmap
