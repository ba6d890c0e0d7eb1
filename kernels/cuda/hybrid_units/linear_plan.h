// SPDX-License-Identifier: Apache-2.0
// How hybrid_units' decode kernel divides its work: decided on the host from sizes alone, so that a
// CUDA graph can hold the decision. Steps: cuda/mma_units/linear_plan.h.
#pragma once
#include <cstdint>

#include "cuda/mma_units/linear_plan.h"
#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "formats/hybrid_units.h"

namespace flashsparse::hybrid_units {

// The compiled shapes: X(most tokens, blocks of 16 rows that a warp multiplies at once, most warps
// of a thread block besides the one that copies x; the last limits the registers of a thread).
#define FS_HYBRID_UNITS_SHAPES(X) \
  X(8, 1, 15)                     \
  X(8, 2, 15)                     \
  X(16, 1, 15)                    \
  X(16, 2, 15)                    \
  X(32, 1, 15)                    \
  X(32, 2, 11)                    \
  X(64, 1, 11)                    \
  X(64, 2, 7)

using mma_units::ShapeInfo;

#define FS_HYBRID_UNITS_SHAPE_INFO(tokens, row_units, warps) {tokens, row_units, warps},
inline constexpr ShapeInfo kShapes[] = {FS_HYBRID_UNITS_SHAPES(FS_HYBRID_UNITS_SHAPE_INFO)};
#undef FS_HYBRID_UNITS_SHAPE_INFO
inline constexpr int kShapeCount = sizeof kShapes / sizeof kShapes[0];

// Whether a shape is compiled for a value type. x of 32 tokens takes more wavefronts of shared
// memory than quantized values, unless a warp multiplies several row blocks by it; four were slower
// than two (1.5 to 2 times on an H200). For 16 tokens the types that `fit` and names choose, int4
// and those with scales of rows, are also compiled with one block, which is faster in small layers;
// 8 bits with scales of 128 columns only so, as two blocks have no registers on compute
// capability 10.0.
constexpr bool is_compiled(const ShapeInfo& shape, UnitLayout unit) {
  if (unit.type == ValueType::kNative || shape.tokens == 8) return true;
  if (shape.tokens != 16) return shape.tokens == 32 && shape.row_units == 2;
  const bool eight_bits = bits_of(unit.type) == 8, only_one = eight_bits && unit.group == 128;
  return shape.row_units == 2 ? !only_one : only_one || unit.group == 0 || !eight_bits;
}

// Most tokens of one launch: x of more does not fit in 99 KB of shared memory, and quantized values
// are not compiled for more.
constexpr int max_tokens(const Gpu& gpu, UnitLayout unit) {
  return gpu.shared_bytes > 128 << 10 && unit.type == ValueType::kNative ? 64 : 32;
}

// Dense units of a weight, in sixteenths of all: so finely plans tell weights apart.
inline constexpr int kParts = 16;
int dense_parts(int64_t stream_bytes, int64_t rows, int64_t cols, UnitLayout unit);
constexpr int mean_unit_bytes(UnitLayout unit, int dense) {
  const int least = unit_bytes(unit, false);
  return least + (unit_bytes(unit, true) - least) * dense / kParts;
}

struct LinearPlan : mma_units::LinearPlan<kShapes> {
  UnitLayout unit{};
  int dense = 0;  // sixteenths

  static constexpr int x_bytes = 2;  // of an element

  int unit_bytes() const { return mean_unit_bytes(unit, dense); }
  int64_t shared_bytes() const;

  // The rule that the plan breaks for a product of this size, or null. A launch needs null.
  const char* broken_rule(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) const;
};

// The launch for tokens in [1, max_tokens(gpu, unit)] of a weight with so many dense parts, and its
// cost in microseconds; then every launch that it was compared with.
Priced<LinearPlan> price_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                                UnitLayout unit, int dense);
std::vector<Priced<LinearPlan>> list_linear(int64_t rows, int64_t cols, int64_t tokens,
                                            const Gpu& gpu, UnitLayout unit, int dense);

inline LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                              UnitLayout unit, int dense) {
  return price_linear(rows, cols, tokens, gpu, unit, dense).launch;
}

}  // namespace flashsparse::hybrid_units
