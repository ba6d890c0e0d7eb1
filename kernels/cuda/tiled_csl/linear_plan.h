// SPDX-License-Identifier: Apache-2.0
// The compiled shapes of Tiled-CSL's linear kernel, and which of them runs: decided on the host
// from sizes alone, so that a CUDA graph can hold the decision.
#pragma once
#include <cstdint>
#include <vector>

#include "cuda/plan/kernel.h"
#include "cuda/shared/gpu.h"
#include "cuda/tiled_csl/stream_k_plan.h"

namespace flashsparse::tiled_csl {

// The compiled shapes: X(tokens, for Hopper, wgmma, warps per team, words in registers per lane,
// warps per block, blocks per SM). cuda/tiled_csl/linear_shape.h and tile_source.cuh explain each;
// docs/kernels.md says how they were chosen.
#define FS_LINEAR_SHAPES(X)         \
  X(8, true, false, 2, 12, 16, 1)   \
  X(8, true, false, 2, 26, 16, 1)   \
  X(8, true, false, 2, 38, 14, 1)   \
  X(8, true, false, 4, 26, 16, 1)   \
  X(8, true, true, 4, 33, 16, 1)    \
  X(16, true, false, 2, 12, 16, 1)  \
  X(16, true, false, 2, 26, 12, 1)  \
  X(16, true, false, 2, 38, 12, 1)  \
  X(16, true, true, 4, 26, 20, 1)   \
  X(16, true, true, 4, 33, 16, 1)   \
  X(32, true, true, 4, 6, 20, 1)    \
  X(32, true, true, 4, 13, 16, 1)   \
  X(32, true, true, 4, 19, 16, 1)   \
  X(32, true, true, 4, 26, 16, 1)   \
  X(32, true, true, 4, 33, 16, 1)   \
  X(64, true, true, 4, 6, 16, 1)    \
  X(64, true, true, 4, 13, 16, 1)   \
  X(64, true, true, 4, 19, 16, 1)   \
  X(64, true, true, 4, 33, 12, 1)   \
  X(96, true, true, 4, 6, 12, 1)    \
  X(96, true, true, 4, 13, 12, 1)   \
  X(96, true, true, 4, 19, 12, 1)   \
  X(96, true, true, 4, 33, 8, 1)    \
  X(128, true, true, 4, 6, 8, 1)    \
  X(128, true, true, 4, 13, 8, 1)   \
  X(128, true, true, 4, 19, 8, 1)   \
  X(128, true, true, 4, 33, 8, 1)   \
  X(8, false, false, 2, 26, 8, 2)   \
  X(8, false, false, 2, 64, 8, 1)   \
  X(16, false, false, 2, 26, 8, 1)  \
  X(16, false, false, 2, 64, 8, 1)  \
  X(32, false, false, 4, 13, 12, 1) \
  X(32, false, false, 4, 32, 12, 1)

struct LinearShapeInfo : linear::ShapeInfo {
  int held;  // words that a lane holds in registers
};

#define FS_LINEAR_SHAPE_INFO(tokens, hopper, wgmma, team_warps, held, warps, blocks) \
  {{tokens, hopper, wgmma, team_warps, warps, blocks}, held},
inline constexpr LinearShapeInfo kLinearShapes[] = {FS_LINEAR_SHAPES(FS_LINEAR_SHAPE_INFO)};
#undef FS_LINEAR_SHAPE_INFO
inline constexpr int kLinearShapeCount = sizeof kLinearShapes / sizeof kLinearShapes[0];

// Words besides those held that fit in a team's registers: the tail of a tile (tile_source.cuh).
inline constexpr int kTailWords = 128;

// Up to this many tokens the launches of this kernel, each of which reads the weight, are mostly
// faster than unpacking the weight once, on an H200 and an H100 (layers.csv): the library needs
// large layers to fill the GPU. A caller that has measured a limit passes it instead
// (flashsparse_plugin/dataflow).
constexpr int64_t max_sparse_tokens(int64_t rows, int64_t cols, const Gpu& gpu) {
  const int64_t by_size = rows * cols >> 17;
  const int64_t most = gpu.has_wgmma() ? 256 : 192;
  return by_size < 32 ? 32 : by_size < most ? by_size : most;
}

struct LinearPlan {
  int shape;  // index into kLinearShapes
  int blocks;

  int64_t partial_floats() const { return linear::partial_floats(kLinearShapes[shape], blocks); }
};

inline Kernel choose_kernel(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                            const TokenLimits& limits = {}) {
  const bool is_few = tokens <= limits.sparse.value_or(max_sparse_tokens(rows, cols, gpu));
  return is_few && linear::fits_stream_k(rows, cols) ? Kernel::kSparse : Kernel::kUnpacked;
}

// The launch for tokens in [1, linear::max_tokens(gpu)] and num_words of the whole weight; then
// every launch that could run in its place.
LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t tokens, int64_t num_words,
                       const Gpu& gpu);
std::vector<LinearPlan> list_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu);

// Estimated microseconds of the planned launch on a GPU whose rates are known: fitted to an H200.
// (The rule that plans it needs no estimate.)
double linear_microseconds(int64_t rows, int64_t cols, int64_t tokens, int64_t num_words,
                           const Gpu& gpu);

}  // namespace flashsparse::tiled_csl
