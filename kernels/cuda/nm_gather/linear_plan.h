// SPDX-License-Identifier: Apache-2.0
// How nm_gather's decode kernel divides its work: decided on the host from sizes alone, so that a
// CUDA graph can hold the decision.
//
// A block owns rows: `row_warps` units of rows, each shared by `depth_warps` warps, which divide
// the kept columns among them, so that the reduction stays inside the block. Only if a weight has
// too few rows for the SMs is K divided into `splits` as well, and partial sums are added up
// between blocks. x passes through shared memory in chunks of `chunk_sections` sections.
#pragma once
#include <cstdint>

#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "formats/nm_gather.h"

namespace flashsparse::nm_gather {

// The compiled shapes: X(tokens, rows of a unit, stages of a warp's ring, warps that multiply), for
// values of 16 bits, of 8 and of 4. linear_shape.h explains each.
#define FS_NM_GATHER_SHAPES(X) \
  X(8, 8, 12, 16)              \
  X(16, 8, 12, 16)             \
  X(32, 8, 12, 12)             \
  X(64, 8, 12, 12)             \
  X(8, 16, 8, 16)              \
  X(16, 16, 8, 16)             \
  X(32, 16, 8, 16)             \
  X(64, 16, 8, 12)             \
  X(8, 32, 4, 16)              \
  X(16, 32, 4, 16)             \
  X(32, 32, 4, 16)             \
  X(64, 32, 6, 8)
#define FS_NM_GATHER_SHAPES_8(X) \
  X(8, 16, 12, 16)               \
  X(16, 16, 12, 16)              \
  X(32, 16, 12, 16)              \
  X(8, 32, 8, 16)                \
  X(16, 32, 8, 16)               \
  X(32, 32, 8, 16)

#define FS_NM_GATHER_SHAPES_4(X) \
  X(8, 32, 8, 16)                \
  X(16, 32, 8, 16)               \
  X(32, 32, 8, 12)

struct ShapeInfo {
  int value_bits, tokens, unit_rows, stages, warps;

  // Shared memory of a warp's ring: see weight_ring.cuh.
  constexpr int64_t ring_bytes() const {
    return stages * (unit_rows * kPair * value_bits / 8 + (value_bits == 4 ? 512 : 0) + 128);
  }
  constexpr bool fits(const Layout& layout) const {
    return unit_rows == layout.unit_rows && value_bits == bits_of(layout.value_type);
  }
};

#define FS_NM_GATHER_INFO(...) {16, __VA_ARGS__},
#define FS_NM_GATHER_INFO_8(...) {8, __VA_ARGS__},
#define FS_NM_GATHER_INFO_4(...) {4, __VA_ARGS__},
inline constexpr ShapeInfo kShapes[] = {FS_NM_GATHER_SHAPES(FS_NM_GATHER_INFO)
                                            FS_NM_GATHER_SHAPES_8(FS_NM_GATHER_INFO_8)
                                                FS_NM_GATHER_SHAPES_4(FS_NM_GATHER_INFO_4)};
#undef FS_NM_GATHER_INFO
#undef FS_NM_GATHER_INFO_8
#undef FS_NM_GATHER_INFO_4
inline constexpr int kShapeCount = sizeof kShapes / sizeof kShapes[0];

// The first shape for values of some bits.
constexpr int first_shape(int bits) {
  int shape = 0;
  while (kShapes[shape].value_bits != bits) ++shape;
  return shape;
}

inline constexpr int kStagingWarps = 4;      // producers of x, besides those that multiply
inline constexpr int64_t kFlagBytes = 16;    // of shared memory
inline constexpr int kMaxChunkPairs = 2048;  // of a chunk: see GatherAddress

struct Plan {
  int shape;  // index into kShapes
  int row_warps, depth_warps;
  int splits;
  int chunk_sections;

  const ShapeInfo& info() const { return kShapes[shape]; }
  int warps() const { return row_warps * depth_warps; }
  int threads() const { return (warps() + kStagingWarps) * 32; }
  int64_t row_blocks(const Layout& layout, int64_t rows) const {
    return ceil_div(layout.units(rows), row_warps);
  }
  // Rows of a chunk in a plane of x, a multiple of 32.
  int64_t chunk_rows(const Layout& layout) const;
  // Shared memory for x: two buffers, unless one holds all of it.
  int64_t x_bytes(const Layout& layout, int64_t cols) const;
  int64_t shared_bytes(const Layout& layout, int64_t cols) const;
  // Floats of the workspace for the partial sums of splits.
  int64_t partial_floats(const Layout& layout, int64_t rows) const;
  // Why a kernel cannot run with this plan; null if it can.
  const char* complaint(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                        const Gpu& gpu) const;
};

// Most tokens of one launch: x of more does not fit in shared memory besides the weights, or, for
// quantized values, is better read transposed (tiles_plan.h).
constexpr int max_tokens(const Layout& layout, const Gpu& gpu) {
  return gpu.shared_bytes < (160 << 10) ? 16 : bits_of(layout.value_type) < 16 ? 32 : 64;
}

// The launch for tokens in [1, max_tokens(layout, gpu)] and its cost in clocks; then every launch
// that it was compared with.
Priced<Plan> price_linear(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                          const Gpu& gpu);
std::vector<Priced<Plan>> list_linear(const Layout& layout, int64_t rows, int64_t cols,
                                      int64_t tokens, const Gpu& gpu);

inline Plan plan_linear(const Layout& layout, int64_t rows, int64_t cols, int64_t tokens,
                        const Gpu& gpu) {
  return price_linear(layout, rows, cols, tokens, gpu).launch;
}

}  // namespace flashsparse::nm_gather
