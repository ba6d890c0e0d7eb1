// SPDX-License-Identifier: Apache-2.0
// Which compiled shape of the dense kernels runs, and how it divides its work: decided on the host
// from sizes alone, so that a CUDA graph can hold the decision.
#pragma once
#include <cstdint>

#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"

namespace flashsparse::dense {

// The compiled shapes of flat_gemm: X(tokens, blocks of 16 rows per warp, warps along the rows,
// warps along K, stages, blocks per SM). flat_gemm.cuh explains each. Not all of them fit in every
// GPU's shared memory, but for every token count at least one does.
#define FS_FLAT_SHAPES(X) \
  X(8, 2, 1, 4, 4, 2)     \
  X(8, 2, 1, 8, 4, 1)     \
  X(16, 2, 1, 4, 4, 2)    \
  X(16, 2, 1, 8, 4, 1)    \
  X(32, 2, 1, 4, 3, 2)    \
  X(32, 4, 2, 4, 2, 1)    \
  X(64, 2, 1, 4, 2, 2)    \
  X(64, 4, 2, 2, 3, 1)

inline constexpr int kFlatStepCols = 64;  // columns of a warp's step in flat_gemm

struct FlatShapeInfo {
  int tokens, row_blocks, warps_n, warps_k, stages, blocks;

  constexpr int rows() const { return 16 * row_blocks * warps_n; }  // of a block
  constexpr int warps() const { return warps_n * warps_k; }
  // Bytes of one step of a warp: rows of W, then of x.
  constexpr int step_bytes() const { return (16 * row_blocks + tokens) * kFlatStepCols * 2; }
  constexpr int shared_bytes() const { return warps() * stages * step_bytes(); }
};

// The compiled shapes of gemv: X(tokens, rows per warp, warps along the rows, warps along K,
// stages, blocks per SM), by tokens and then by warps along K.
#define FS_GEMV_SHAPES(X) \
  X(1, 4, 4, 2, 3, 3)     \
  X(1, 4, 1, 8, 3, 3)     \
  X(2, 4, 4, 2, 3, 3)     \
  X(2, 4, 1, 8, 3, 3)     \
  X(4, 4, 4, 2, 3, 2)     \
  X(4, 4, 1, 8, 3, 2)     \
  X(8, 4, 4, 2, 3, 1)     \
  X(8, 4, 1, 8, 3, 1)

struct GemvShapeInfo {
  int tokens, rows_a_warp, warps_n, warps_k, stages, blocks;

  constexpr int rows() const { return rows_a_warp * warps_n; }
};

// The kernels for weights whose rows are not all 16-byte aligned: one per op, exact but slow.
#define FS_UNALIGNED_FLAT_SHAPE 16, 2, 1, 4, 2, 1
#define FS_UNALIGNED_GEMV_SHAPE 4, 4, 1, 8, 2, 1

// The shapes of the lists above, then the one for unaligned weights.
#define FS_DENSE_SHAPE_INFO(...) {__VA_ARGS__},
inline constexpr FlatShapeInfo kFlatShapes[] = {
    FS_FLAT_SHAPES(FS_DENSE_SHAPE_INFO){FS_UNALIGNED_FLAT_SHAPE}};
inline constexpr GemvShapeInfo kGemvShapes[] = {
    FS_GEMV_SHAPES(FS_DENSE_SHAPE_INFO){FS_UNALIGNED_GEMV_SHAPE}};
#undef FS_DENSE_SHAPE_INFO
inline constexpr int kFlatShapeCount = sizeof kFlatShapes / sizeof kFlatShapes[0];
inline constexpr int kGemvShapeCount = sizeof kGemvShapes / sizeof kGemvShapes[0];
inline constexpr int kUnalignedFlat = kFlatShapeCount - 1, kUnalignedGemv = kGemvShapeCount - 1;

inline constexpr int kGemvStepCols = 256;  // columns of a warp's step in gemv
inline constexpr int kMaxSplit = 32;
inline constexpr int kMaxCutRowBlocks = 4096;  // of a layer with split-K: an arrival counter each

// Most tokens of one launch.
constexpr int max_flat_tokens(bool aligned) {
  return aligned ? 64 : kFlatShapes[kUnalignedFlat].tokens;
}
constexpr int max_gemv_tokens(bool aligned) {
  return aligned ? 8 : kGemvShapes[kUnalignedGemv].tokens;
}

struct FlatPlan {
  int shape;  // index into kFlatShapes
  int split;  // parts of K, a block each

  int64_t row_blocks(int64_t rows) const {
    return (rows + kFlatShapes[shape].rows() - 1) / kFlatShapes[shape].rows();
  }
  // Floats of the workspace for partial sums, which the last block adds up.
  int64_t partial_floats(int64_t rows) const {
    const FlatShapeInfo& info = kFlatShapes[shape];
    return split == 1 ? 0 : row_blocks(rows) * split * info.tokens * info.rows();
  }
};

// The launch for tokens in [1, max_flat_tokens(aligned)] and its cost, in bytes of the weight that
// an SM reads in that time; then every launch that it was compared with.
Priced<FlatPlan> price_flat_gemm(int64_t rows, int64_t cols, int64_t tokens, bool aligned,
                                 const Gpu& gpu);
std::vector<Priced<FlatPlan>> list_flat_gemm(int64_t rows, int64_t cols, int64_t tokens,
                                             bool aligned, const Gpu& gpu);

inline FlatPlan plan_flat_gemm(int64_t rows, int64_t cols, int64_t tokens, bool aligned,
                               const Gpu& gpu) {
  return price_flat_gemm(rows, cols, tokens, aligned, gpu).launch;
}

// The index of a shape; tokens in [1, max_gemv_tokens(aligned)].
int plan_gemv(int64_t rows, int64_t tokens, bool aligned, int multiprocessors);

// Estimated microseconds of gemv on a GPU whose rates are known: the longest of the weight from
// memory, weight and x from the L2, and its instructions. Fitted to an H200.
double gemv_microseconds(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu);

// The most parts of K with a shape: every warp gets a step.
int max_split(int shape, int64_t rows, int64_t cols);

}  // namespace flashsparse::dense
