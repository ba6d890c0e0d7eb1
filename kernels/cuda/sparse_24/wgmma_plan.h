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

// The compiled shapes: X(tokens of a tile, groups of 64 rows of a block, of which a warpgroup
// multiplies so many, mask of the value bits that it is compiled for). Bit 4 of the mask selects
// the types that are compiled in few shapes (has_few_shapes). A partly filled token tile costs as
// much as a full one: hence the many tile widths. With 16-bit values, four warpgroups leave no
// registers for the accumulators of 96 tokens, and 160 tokens with two warpgroups are as fast as
// 144 with three.
//
// Up to 32 tokens the limit is instructions: waits, addresses and the release of x are shared by
// two groups of rows, for which 8-bit values leave registers.
#define FS_SPARSE_24_WGMMA_SHAPES(X) \
  X(64, 2, 1, 16)                    \
  X(64, 3, 1, 16 | 8 | 4)            \
  X(64, 4, 1, 16 | 8)                \
  X(32, 4, 2, 8)                     \
  X(32, 6, 2, 8)                     \
  X(96, 2, 1, 16 | 8)                \
  X(96, 3, 1, 16 | 8 | 4)            \
  X(96, 4, 1, 8)                     \
  X(128, 2, 1, 16 | 8 | 4)           \
  X(128, 3, 1, 16 | 8)               \
  X(144, 3, 1, 8 | 4)                \
  X(160, 2, 1, 16 | 8)               \
  X(192, 2, 1, 16 | 8 | 4)           \
  X(224, 2, 1, 16 | 8)               \
  X(256, 2, 1, 16 | 8 | 4)

struct WgmmaShapeInfo : mma_units::WgmmaShapeInfo {
  int high;  // groups of rows that a warpgroup multiplies
  int bits;  // of values

  constexpr int warpgroups() const { return groups / high; }
  // Panels of x in a stage. With two groups of rows a warpgroup, pairs of panels were slower: there
  // the rows share a wait already.
  constexpr int stage_panels() const {
    return high > 1 ? 1 : mma_units::wgmma_stage_panels(tokens);
  }

  constexpr bool is_for(UnitLayout unit) const {
    return (bits & (has_few_shapes(unit) ? 4 : bits_of(unit.type))) != 0;
  }
};

#define FS_SPARSE_24_WGMMA_INFO(tokens, groups, high, bits) {{tokens, groups}, high, bits},
inline constexpr WgmmaShapeInfo kWgmmaShapes[] = {
    FS_SPARSE_24_WGMMA_SHAPES(FS_SPARSE_24_WGMMA_INFO)};
#undef FS_SPARSE_24_WGMMA_INFO
inline constexpr int kWgmmaShapeCount = sizeof kWgmmaShapes / sizeof kWgmmaShapes[0];

// One more warpgroup copies x, and gives the others most of its registers.
constexpr int wgmma_threads(const WgmmaShapeInfo& shape) { return (shape.warpgroups() + 1) * 128; }

// Registers of a thread for its part of a 16x256 block: values, metadata and scales.
constexpr int unit_registers(UnitLayout unit) {
  return 4 * unit.scales() / kVectorBytes + ((unit.bytes() - unit.scales()) / 4 + 31) / 32;
}

// 16x256 blocks that a warp prefetches at a time, limited by registers. Native values arrive fast
// enough one block at a time. `x_bytes` per element of x: 1 if it is quantized.
constexpr int wgmma_units_at_once(const WgmmaShapeInfo& shape, UnitLayout unit, int x_bytes) {
  // Registers: A of two panels, addresses, counts.
  const int others = x_bytes == 1 && shape.tokens > 128 ? 32 : 40;
  const int all = mma_units::wgmma_registers(shape.warpgroups());
  const int free = all / shape.high - shape.tokens / 2 - others;
  const int units = free / (2 * unit_registers(unit));
  return unit.type == ValueType::kNative || units < 1 ? 1 : units < 3 ? units : 3;
}

// Whether a block has registers to load weights before it moves them between its warpgroups.
constexpr bool begins_early(const WgmmaShapeInfo& shape, UnitLayout unit) {
  return shape.tokens <= 64 && bits_of(unit.type) == 8 && unit.has_row_scales();
}

struct WgmmaPlan : mma_units::WgmmaPlan<kWgmmaShapes> {
  UnitLayout unit{};
  int x_bytes = 2;  // per element of x: 1 if it is quantized

  int threads() const { return wgmma_threads(info()); }
  int64_t shared_bytes() const { return mma_units::wgmma_bytes_before_ring(*this); }

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
