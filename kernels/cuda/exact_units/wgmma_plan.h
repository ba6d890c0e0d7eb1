// SPDX-License-Identifier: Apache-2.0
// How exact_units' prefill kernel (wgmma) divides its work: decided on the host from sizes alone,
// so that a CUDA graph can hold the decision. Tiles, steps and clusters:
// cuda/mma_units/wgmma_shape.h.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "cuda/mma_units/wgmma_plan.h"
#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "formats/exact_units.h"

namespace flashsparse::exact_units {

// The compiled shapes: X(tokens of a tile, warpgroups that multiply). More warpgroups leave no room
// for two stages of their units.
#define FS_EXACT_UNITS_WGMMA_SHAPES(X) \
  X(32, 3)                             \
  X(32, 4)                             \
  X(64, 3)                             \
  X(64, 4)                             \
  X(128, 2)                            \
  X(128, 3)                            \
  X(256, 2)

#define FS_EXACT_UNITS_WGMMA_INFO(tokens, groups) {tokens, groups},
inline constexpr mma_units::WgmmaShapeInfo kWgmmaShapes[] = {
    FS_EXACT_UNITS_WGMMA_SHAPES(FS_EXACT_UNITS_WGMMA_INFO)};
#undef FS_EXACT_UNITS_WGMMA_INFO
inline constexpr int kWgmmaShapeCount = sizeof kWgmmaShapes / sizeof kWgmmaShapes[0];

// Whether a shape is compiled for a kind of unit: where exceptions join A, registers have no room
// for more warpgroups.
constexpr bool wgmma_is_for(int tokens, int groups, Kind kind) {
  return kind == Kind::k24 || (tokens <= 64 ? groups == 3 : groups == 2);
}

// Up to 128 tokens a single warp copies x. The accumulators of more take registers of the
// producer's threads, which setmaxnreg moves from warpgroup to warpgroup.
FS_HOST_DEVICE constexpr bool wgmma_moves_registers(int tokens) { return tokens > 128; }
FS_HOST_DEVICE constexpr int wgmma_threads(const mma_units::WgmmaShapeInfo& shape) {
  return shape.groups * 128 + (wgmma_moves_registers(shape.tokens) ? 128 : 32);
}

struct WgmmaPlan : mma_units::WgmmaPlan<kWgmmaShapes> {
  int unit_slots = 16;
  Kind kind = Kind::kDense;

  int threads() const { return wgmma_threads(info()); }
  int unit_bytes() const { return exact_units::unit_bytes(kind) + unit_slots * 4; }
  // Stages of the weight ring: whatever shared memory remains.
  int weight_stages() const;
  int64_t shared_bytes() const;

  // The rule that the plan breaks for a product of this size, or null. A launch needs null.
  const char* broken_rule(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) const;
};

// The launch for tokens >= 1 on a GPU with wgmma and its cost in microseconds; then every launch
// that it was compared with.
Priced<WgmmaPlan> price_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, Kind kind,
                              int unit_slots);
std::vector<Priced<WgmmaPlan>> list_wgmma(int64_t rows, int64_t cols, int64_t tokens,
                                          const Gpu& gpu, Kind kind, int unit_slots);

inline WgmmaPlan plan_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu, Kind kind,
                            int unit_slots) {
  return price_wgmma(rows, cols, tokens, gpu, kind, unit_slots).launch;
}

}  // namespace flashsparse::exact_units
