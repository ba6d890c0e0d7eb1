// SPDX-License-Identifier: Apache-2.0
// Which compiled shape of the linear kernel runs, and how its work is cut: decided on the host from
// sizes alone, so that a CUDA graph can hold the decision.
#pragma once
#include <cstdint>

#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

// The compiled shapes: X(tokens, for Hopper, wgmma, warps a team, words held a lane, warps a block,
// blocks a multiprocessor). tiled_csl_linear.cuh explains each; docs/kernels.md says how they were
// chosen.
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

struct LinearShapeInfo {
  int tokens;
  bool hopper, wgmma;
  int team_warps, held, warps, blocks;

  constexpr int teams() const { return warps / team_warps; }
};

#define FS_LINEAR_SHAPE_INFO(...) {__VA_ARGS__},
inline constexpr LinearShapeInfo kLinearShapes[] = {FS_LINEAR_SHAPES(FS_LINEAR_SHAPE_INFO)};
#undef FS_LINEAR_SHAPE_INFO
inline constexpr int kLinearShapeCount = sizeof kLinearShapes / sizeof kLinearShapes[0];

struct Gpu {
  int multiprocessors;
  bool hopper;  // compute capability 9.0, which has wgmma
};

// Words that a team loads, and stores, behind one predicate.
inline constexpr int kLinearChunk = 128;

// Tiles of one block: their offsets lie in its shared memory.
inline constexpr int kMaxPiece = 1024;

// Tiles of one launch, 8 billion weights: tiles * (blocks + 1) stays below 2^32 while a block has
// kMaxPiece tiles or a multiprocessor a few blocks.
inline constexpr int64_t kMaxLinearTiles = 1 << 20;

// Of one launch. (The registers of mma hold sums for no more than 32 tokens.)
constexpr int max_linear_tokens(Gpu gpu) { return gpu.hopper ? 128 : 32; }

// Of several, each of which reads the weight: for more it is mostly faster to unpack the weight
// once. Holds where the caller does not say better (flashsparse_plugin/dataflow).
constexpr int max_sparse_tokens(Gpu gpu) { return gpu.hopper ? 256 : 192; }

struct LinearPlan {
  int shape;  // index into kLinearShapes
  int blocks;

  int64_t partial_floats() const {
    const LinearShapeInfo& info = kLinearShapes[shape];
    return int64_t{blocks} * (2 + info.teams()) * info.tokens * kTileRows;
  }
};

// tokens in [1, max_linear_tokens(gpu)]; num_words of the whole weight.
LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t tokens, int64_t num_words, Gpu gpu);

}  // namespace flashsparse::tiled_csl
