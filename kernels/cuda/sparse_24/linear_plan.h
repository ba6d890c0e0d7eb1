// SPDX-License-Identifier: Apache-2.0
// How sparse_24's decode kernel divides its work: decided on the host from sizes alone, so that a
// CUDA graph can hold the decision. Steps: cuda/mma_units/linear_plan.h.
#pragma once
#include <cstdint>

#include "cuda/mma_units/linear_plan.h"
#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// The compiled shapes: X(most tokens, blocks of 16 rows that a warp multiplies at once, most warps
// of a thread block besides the one that copies x; the last limits the registers of a thread).
#define FS_SPARSE_24_SHAPES(X) \
  X(8, 1, 15)                  \
  X(8, 2, 15)                  \
  X(16, 1, 15)                 \
  X(16, 2, 15)                 \
  X(32, 1, 15)                 \
  X(32, 2, 15)                 \
  X(32, 4, 7)                  \
  X(64, 1, 15)                 \
  X(64, 2, 7)

using mma_units::ShapeInfo;

#define FS_SPARSE_24_SHAPE_INFO(tokens, row_units, warps) {tokens, row_units, warps},
inline constexpr ShapeInfo kShapes[] = {FS_SPARSE_24_SHAPES(FS_SPARSE_24_SHAPE_INFO)};
#undef FS_SPARSE_24_SHAPE_INFO
inline constexpr int kShapeCount = sizeof kShapes / sizeof kShapes[0];

// Whether a shape is compiled for a value type and x of `x_bytes` per element: 2, or 1 if x is
// quantized. x of many tokens takes more wavefronts of shared memory than quantized values, unless
// a warp multiplies several row blocks by it; quantized x takes half as many. Of 16 tokens and 8
// bits a single row block is compiled, too: small layers are faster by it than by parts of row
// tiles (4096x4096: 7.4 us for 8.7 on an H200).
constexpr bool is_compiled(const ShapeInfo& shape, UnitLayout unit, int x_bytes) {
  return unit.type == ValueType::kNative || shape.row_units * 8 >= shape.tokens ||
         (x_bytes == 1 && shape.tokens == 64 && shape.row_units == 2) ||
         (x_bytes == 2 && shape.tokens == 16 && bits_of(unit.type) == 8);
}

// Most tokens of one launch: 16-bit x of more does not fit in 99 KB of shared memory, and
// quantized values are not compiled for more.
constexpr int max_tokens(const Gpu& gpu, UnitLayout unit, int x_bytes = 2) {
  if (x_bytes == 1) return 64;
  return gpu.shared_bytes > 128 << 10 && unit.type == ValueType::kNative ? 64 : 32;
}

struct LinearPlan : mma_units::LinearPlan<kShapes> {
  UnitLayout unit{};
  int x_bytes = 2;  // per element of x: 1 if it is quantized

  int unit_bytes() const { return unit.bytes(); }
  int64_t shared_bytes() const;

  // The rule that the plan breaks for a product of this size, or null. A launch needs null.
  const char* broken_rule(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) const;
};

// The launch for tokens in [1, max_tokens(gpu, unit, x_bytes)] and its cost in microseconds; then
// every launch that it was compared with.
Priced<LinearPlan> price_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                                UnitLayout unit, int x_bytes = 2);
std::vector<Priced<LinearPlan>> list_linear(int64_t rows, int64_t cols, int64_t tokens,
                                            const Gpu& gpu, UnitLayout unit, int x_bytes = 2);

inline LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                              UnitLayout unit, int x_bytes = 2) {
  return price_linear(rows, cols, tokens, gpu, unit, x_bytes).launch;
}

}  // namespace flashsparse::sparse_24
