// SPDX-License-Identifier: Apache-2.0
// How sparse_24's prefill kernel (wgmma) divides its work: decided on the host from sizes alone, so
// that a CUDA graph can hold the decision. Tiles, steps and clusters: cuda/mma_units/wgmma_shape.h.
#pragma once
#include <cstdint>

#include "cuda/mma_units/wgmma_plan.h"
#include "cuda/plan/priced.h"
#include "cuda/shared/gpu.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// Whether a value type is compiled in few shapes: 4-bit values, and all with group scales.
constexpr bool has_few_shapes(UnitLayout unit) {
  return unit.type == ValueType::kInt4 || unit.group > 0;
}

// The compiled shapes: X(tokens of a tile, warpgroups that multiply, mask of the value bits that it
// is compiled for, whether weights pass through a ring in shared memory). Bit 4 of the mask selects
// the types that are compiled in few shapes (has_few_shapes). A partly filled token tile costs as
// much as a full one: hence the many tile widths. With 16-bit values, four warpgroups leave no
// registers for the accumulators of 96 tokens, and 160 tokens with two warpgroups are as fast as
// 144 with three. For 8-bit values and up to 64 tokens, the fastest of these five shapes is 0.3%
// slower than the fastest of eleven over 718 launches on an H200, and 5% in the worst of 40 points;
// with one more (a ring, 32 tokens, three warpgroups) it would be 0.1% and 1%.
#define FS_SPARSE_24_WGMMA_SHAPES(X) \
  X(64, 2, 16, false)                \
  X(64, 3, 16 | 8 | 4, false)        \
  X(64, 4, 16 | 8, false)            \
  X(32, 4, 8, true)                  \
  X(32, 5, 8, true)                  \
  X(64, 4, 8, true)                  \
  X(96, 2, 16 | 8, false)            \
  X(96, 3, 16 | 8 | 4, false)        \
  X(96, 4, 8, false)                 \
  X(128, 2, 16 | 8 | 4, false)       \
  X(128, 3, 16 | 8, false)           \
  X(144, 3, 8 | 4, false)            \
  X(160, 2, 16 | 8, false)           \
  X(192, 2, 16 | 8 | 4, false)       \
  X(224, 2, 16 | 8, false)           \
  X(256, 2, 16 | 8 | 4, false)

struct WgmmaShapeInfo : mma_units::WgmmaShapeInfo {
  int bits;  // of values
  bool has_ring;

  constexpr bool is_for(UnitLayout unit) const {
    return (bits & (has_few_shapes(unit) ? 4 : bits_of(unit.type))) != 0;
  }
};

#define FS_SPARSE_24_WGMMA_INFO(tokens, groups, bits, has_ring) {{tokens, groups}, bits, has_ring},
inline constexpr WgmmaShapeInfo kWgmmaShapes[] = {
    FS_SPARSE_24_WGMMA_SHAPES(FS_SPARSE_24_WGMMA_INFO)};
#undef FS_SPARSE_24_WGMMA_INFO
inline constexpr int kWgmmaShapeCount = sizeof kWgmmaShapes / sizeof kWgmmaShapes[0];

// With a ring a single warp copies x: setmaxnreg is not used, so the producer needs no warpgroup.
constexpr int wgmma_threads(int groups, bool has_ring) {
  return groups * 128 + (has_ring ? 32 : 128);
}

// Shared memory of a block with a ring: what every GPU with wgmma has, less what a resident block
// of the kernel that quantizes x needs.
inline constexpr int64_t kWgmmaRingShared = 225 << 10;

// Registers of a thread for its part of a 16x256 block: values, metadata and scales.
constexpr int unit_registers(UnitLayout unit) {
  return 4 * unit.scales() / kVectorBytes + ((unit.bytes() - unit.scales()) / 4 + 31) / 32;
}

// 16x256 blocks that a warp prefetches at a time, limited by registers. Native values arrive fast
// enough one block at a time. `x_bytes` per element of x: 1 if it is quantized.
constexpr int wgmma_units_at_once(const mma_units::WgmmaShapeInfo& shape, UnitLayout unit,
                                  int x_bytes) {
  const int others = x_bytes == 1 ? 32 : 40;  // registers: A of two panels, addresses, counts
  const int free = mma_units::wgmma_registers(shape.groups) - shape.tokens / 2 - others;
  const int units = free / (2 * unit_registers(unit));
  return unit.type == ValueType::kNative || units < 1 ? 1 : units < 3 ? units : 3;
}

struct WgmmaPlan : mma_units::WgmmaPlan<kWgmmaShapes> {
  UnitLayout unit{};
  int x_bytes = 2;  // per element of x: 1 if it is quantized

  int threads() const { return wgmma_threads(info().groups, info().has_ring); }
  // Stages of the weight ring: whatever shared memory remains; 0 without a ring.
  int weight_stages() const;
  int64_t shared_bytes() const;

  // The rule that the plan breaks for a product of this size, or null. A launch needs null.
  const char* broken_rule(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) const;
};

// The launch for tokens >= 1 on a GPU with wgmma and its cost in microseconds; then every launch
// that it was compared with.
Priced<WgmmaPlan> price_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                              UnitLayout unit = {}, int x_bytes = 2);
std::vector<Priced<WgmmaPlan>> list_wgmma(int64_t rows, int64_t cols, int64_t tokens,
                                          const Gpu& gpu, UnitLayout unit = {}, int x_bytes = 2);

inline WgmmaPlan plan_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                            UnitLayout unit = {}, int x_bytes = 2) {
  return price_wgmma(rows, cols, tokens, gpu, unit, x_bytes).launch;
}

// Estimated microseconds of a panel of 16-bit x by a block of the grouped kernel, where the limiter
// is the same throughout: of `written` tokens, in clusters of `down` blocks, for a weight that is
// read from memory once for `token_tiles` tiles of tokens, with so many blocks on the GPU.
double wgmma_panel(const WgmmaShapeInfo& info, UnitLayout unit, int down, double written,
                   double token_tiles, int blocks, const Gpu& gpu);

// Estimated microseconds of a launch, fitted for comparing launches.
double wgmma_cost(const WgmmaPlan& plan, int64_t rows, int64_t cols, int64_t tokens,
                  const Gpu& gpu);

}  // namespace flashsparse::sparse_24
