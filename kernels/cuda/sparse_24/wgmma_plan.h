// SPDX-License-Identifier: Apache-2.0
// How the wgmma kernel of sparse_24 is cut: decided on the host from sizes alone, so that a CUDA
// graph can hold the decision. Tiles, steps and clusters: cuda/mma_units/wgmma_shape.h.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "cuda/mma_units/wgmma_shape.h"
#include "cuda/plan/search.h"
#include "cuda/shared/gpu.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// Whether values are compiled in a few shapes only: those of 4 bits, and with scales of groups.
constexpr bool has_few_shapes(UnitLayout unit) {
  return unit.type == ValueType::kInt4 || unit.group > 0;
}

// The compiled shapes: X(tokens of a tile, warpgroups that multiply, bits of values that it is for,
// whether weights come through a ring in shared memory), where 4 stands for all that has few
// shapes. Behind each number of tokens a tile begins that costs as much for one token as for all of
// its own: so there are many. Of 16 bits, units of four warpgroups leave no registers for the sums
// of 96 tokens, and 160 tokens by two warpgroups are as fast as 144 by three. For up to 64 tokens
// of 8 bits the fastest of these five are 0.3% slower than the fastest of eleven, by 718 launches
// on an H200, 5% in the worst of 40 points; those of one more, a ring of 32 tokens and three
// warpgroups, 0.1% and 1%.
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

// Beside a ring one warp copies x, and no registers are moved, so that it needs no warpgroup.
constexpr int wgmma_threads(int groups, bool has_ring) {
  return groups * 128 + (has_ring ? 32 : 128);
}

// Units of a warp in a ring, at most: groups of copies that a thread can wait for.
inline constexpr int kWgmmaRingStages = 8;

// Shared memory of a block with a ring: what all GPUs that have wgmma give, less what lets a block
// that rounds x reside beside.
inline constexpr int64_t kWgmmaRingShared = 225 << 10;

// Of a thread, for what it has of a unit: vectors of values and metadata, and scales.
constexpr int unit_registers(UnitLayout unit) {
  return 4 * unit.scales() / kVectorBytes + ((unit.bytes() - unit.scales()) / 4 + 31) / 32;
}

// Units that a warp loads at once while it multiplies by as many: what registers hold of codes.
// Native values come fast enough one at a time. `x_bytes` of an element of x: 1 where it is codes.
constexpr int wgmma_units_at_once(const mma_units::WgmmaShapeInfo& shape, UnitLayout unit,
                                  int x_bytes) {
  const int others = x_bytes == 1 ? 32 : 40;  // registers: A of two panels, addresses, counts
  const int free = mma_units::wgmma_registers(shape.groups) - shape.tokens / 2 - others;
  const int units = free / (2 * unit_registers(unit));
  return unit.type == ValueType::kNative || units < 1 ? 1 : units < 3 ? units : 3;
}

// Where there are blocks behind each other, what they all give to this one of their sums: in shared
// memory, beside barriers and the stages of x.
FS_HOST_DEVICE constexpr int64_t wgmma_sums_bytes(int tokens, int groups, int depth) {
  return depth > 1 ? int64_t{tokens} * groups * mma_units::kGroupRows * 4 : 0;
}

struct WgmmaPlan {
  int shape;        // index into kWgmmaShapes
  int down, depth;  // blocks of a cluster, below each other and behind each other: 1, 2, 4 or 8
  int stages;       // of x, in shared memory
  int clusters;     // that are launched
  UnitLayout unit{};
  int x_bytes = 2;  // of an element of x: 1 where it is codes

  const WgmmaShapeInfo& info() const { return kWgmmaShapes[shape]; }
  int threads() const { return wgmma_threads(info().groups, info().has_ring); }
  int cluster() const { return down * depth; }  // blocks
  int blocks() const { return cluster() * clusters; }
  int copied_tokens() const { return info().tokens / down; }  // of x, by a block
  // Of the ring of weights, which has the room that is left; 0 where there is none.
  int weight_stages() const;
  int64_t shared_bytes() const;

  int64_t tile_rows() const { return int64_t{down} * info().groups * mma_units::kGroupRows; }
  // Of a tile, for the first of the blocks behind each other.
  int64_t tile_steps(int64_t cols) const { return (unit_cols(cols) + depth - 1) / depth; }
  int64_t tiles(int64_t rows, int64_t tokens) const {
    const int64_t down = (rows + tile_rows() - 1) / tile_rows();
    return down * ((tokens + info().tokens - 1) / info().tokens);
  }
  // Whether a tile is cut, so that clusters have to add up their sums.
  bool shares_tiles(int64_t rows, int64_t tokens) const {
    return tiles(rows, tokens) % clusters != 0;
  }
  // What a launch needs beside its tensors: arrival counters and floats of the workspace.
  int64_t arrivals(int64_t rows, int64_t tokens) const {
    return shares_tiles(rows, tokens) ? tiles(rows, tokens) * tile_rows() / kUnitRows : 0;
  }
  int64_t partial_floats(int64_t rows, int64_t tokens) const {
    return shares_tiles(rows, tokens) ? 2 * clusters * tile_rows() * info().tokens : 0;
  }

  // The rule that the plan breaks for a product of this size, or null. A launch needs null.
  const char* broken_rule(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) const;
};

// The launch for tokens >= 1 on a GPU with wgmma and its cost in microseconds; and all that it was
// compared with.
Priced<WgmmaPlan> price_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                              UnitLayout unit = {}, int x_bytes = 2);
std::vector<Priced<WgmmaPlan>> list_wgmma(int64_t rows, int64_t cols, int64_t tokens,
                                          const Gpu& gpu, UnitLayout unit = {}, int x_bytes = 2);

inline WgmmaPlan plan_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                            UnitLayout unit = {}, int x_bytes = 2) {
  return price_wgmma(rows, cols, tokens, gpu, unit, x_bytes).launch;
}

// Microseconds that a launch should take, fitted to compare launches by.
double wgmma_cost(const WgmmaPlan& plan, int64_t rows, int64_t cols, int64_t tokens,
                  const Gpu& gpu);

}  // namespace flashsparse::sparse_24
