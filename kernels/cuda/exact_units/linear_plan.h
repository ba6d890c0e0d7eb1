// SPDX-License-Identifier: Apache-2.0
// How exact_units' decode kernel divides its work: decided on the host from sizes alone, so that a
// CUDA graph can hold the decision. Steps: cuda/mma_units/linear_plan.h.
#pragma once
#include <cstdint>

#include "cuda/mma_units/linear_plan.h"
#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "formats/exact_units.h"

namespace flashsparse::exact_units {

// The compiled shapes: X(most tokens, blocks of 16 rows that a warp multiplies at once, most warps
// of a thread block besides the one that copies x; the last limits the registers of a thread).
#define FS_EXACT_UNITS_SHAPES(X) \
  X(8, 1, 15)                    \
  X(8, 2, 15)                    \
  X(16, 1, 15)                   \
  X(16, 2, 15)                   \
  X(32, 1, 15)                   \
  X(32, 2, 15)                   \
  X(32, 4, 7)                    \
  X(64, 1, 11)                   \
  X(64, 2, 7)

using mma_units::ShapeInfo;

#define FS_EXACT_UNITS_SHAPE_INFO(tokens, row_units, warps) {tokens, row_units, warps},
inline constexpr ShapeInfo kShapes[] = {FS_EXACT_UNITS_SHAPES(FS_EXACT_UNITS_SHAPE_INFO)};
#undef FS_EXACT_UNITS_SHAPE_INFO
inline constexpr int kShapeCount = sizeof kShapes / sizeof kShapes[0];

// Whether a shape is compiled for units of a kind. Four row blocks were never the cheapest launch
// of dense units, in 400,000 products on GPUs of every compute capability; of units of 2:4 they are
// in one of 13.
constexpr bool is_compiled(const ShapeInfo& shape, Kind kind) {
  return kind == Kind::k24 || shape.row_units <= 2;
}

// Most tokens of one launch: x of more does not fit in 99 KB of shared memory.
constexpr int max_tokens(const Gpu& gpu) { return gpu.shared_bytes > 128 << 10 ? 64 : 32; }

struct LinearPlan : mma_units::LinearPlan<kShapes> {
  int unit_slots = 16;  // for exceptions
  Kind kind = Kind::kDense;

  static constexpr int x_bytes = 2;  // of an element

  int unit_bytes() const { return exact_units::unit_bytes(kind) + unit_slots * 4; }
  int64_t shared_bytes() const;

  // The rule that the plan breaks for a product of this size, or null. A launch needs null.
  const char* broken_rule(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) const;
};

// The launch for tokens in [1, max_tokens(gpu)] of a weight with such units and these slots in
// each, and its cost in microseconds; then every launch that it was compared with.
Priced<LinearPlan> price_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                                Kind kind, int unit_slots);
std::vector<Priced<LinearPlan>> list_linear(int64_t rows, int64_t cols, int64_t tokens,
                                            const Gpu& gpu, Kind kind, int unit_slots);

inline LinearPlan plan_linear(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, Kind kind,
                              int unit_slots) {
  return price_linear(rows, cols, tokens, gpu, kind, unit_slots).launch;
}

}  // namespace flashsparse::exact_units
