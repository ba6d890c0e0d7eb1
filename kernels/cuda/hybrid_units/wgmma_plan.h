// SPDX-License-Identifier: Apache-2.0
// How hybrid_units' prefill kernel (wgmma) divides its work: decided on the host from sizes alone,
// so that a CUDA graph can hold the decision. Tiles, steps and clusters:
// cuda/mma_units/wgmma_shape.h.
#pragma once
#include <cstdint>

#include "cuda/hybrid_units/linear_plan.h"
#include "cuda/mma_units/wgmma_plan.h"
#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "formats/hybrid_units.h"

namespace flashsparse::hybrid_units {

// The compiled shapes: X(tokens of a tile, warpgroups that multiply, mask of the value bits that it
// is compiled for). A unit of 16-bit values and the next one take 136 registers.
#define FS_HYBRID_UNITS_WGMMA_SHAPES(X) \
  X(32, 3, 8 | 4)                       \
  X(64, 2, 16 | 8 | 4)                  \
  X(64, 3, 8 | 4)                       \
  X(128, 2, 16 | 8 | 4)

struct WgmmaShapeInfo : mma_units::WgmmaShapeInfo {
  int bits;  // of values

  constexpr int stage_panels() const { return mma_units::wgmma_stage_panels(tokens); }
};

#define FS_HYBRID_UNITS_WGMMA_INFO(tokens, groups, bits) {{tokens, groups}, bits},
inline constexpr WgmmaShapeInfo kWgmmaShapes[] = {
    FS_HYBRID_UNITS_WGMMA_SHAPES(FS_HYBRID_UNITS_WGMMA_INFO)};
#undef FS_HYBRID_UNITS_WGMMA_INFO
inline constexpr int kWgmmaShapeCount = sizeof kWgmmaShapes / sizeof kWgmmaShapes[0];

// Of 8 bits only scales of rows are compiled: `fit` and names of formats choose no others.
constexpr bool has_wgmma(UnitLayout unit) {
  return unit.group == 0 || unit.type == ValueType::kInt4;
}
constexpr bool wgmma_is_compiled(const WgmmaShapeInfo& shape, UnitLayout unit) {
  return has_wgmma(unit) && (shape.bits & bits_of(unit.type)) != 0;
}

struct WgmmaPlan : mma_units::WgmmaPlan<kWgmmaShapes> {
  UnitLayout unit{};
  int dense = 0;  // sixteenths

  // One more warpgroup copies x, and gives the others most of its registers.
  int threads() const { return (info().groups + 1) * 128; }
  int unit_bytes() const { return mean_unit_bytes(unit, dense); }
  int64_t shared_bytes() const { return mma_units::wgmma_bytes_before_ring(*this); }

  // The rule that the plan breaks for a product of this size, or null. A launch needs null.
  const char* broken_rule(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) const;
};

// The launch for tokens >= 1 of a weight with so many dense parts, on a GPU with wgmma, and its
// cost in microseconds; then every launch that it was compared with.
Priced<WgmmaPlan> price_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                              UnitLayout unit, int dense);
std::vector<Priced<WgmmaPlan>> list_wgmma(int64_t rows, int64_t cols, int64_t tokens,
                                          const Gpu& gpu, UnitLayout unit, int dense);

inline WgmmaPlan plan_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                            UnitLayout unit, int dense) {
  return hybrid_units::price_wgmma(rows, cols, tokens, gpu, unit, dense).launch;
}

}  // namespace flashsparse::hybrid_units
