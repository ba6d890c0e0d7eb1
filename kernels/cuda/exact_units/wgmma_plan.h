// SPDX-License-Identifier: Apache-2.0
// How exact_units' prefill kernel (wgmma) divides its work: decided on the host from sizes alone,
// so that a CUDA graph can hold the decision. Tiles, steps and clusters:
// cuda/mma_units/wgmma_shape.h.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "cuda/mma_units/wgmma_shape.h"
#include "cuda/plan/search.h"
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
  X(128, 3)

#define FS_EXACT_UNITS_WGMMA_INFO(tokens, groups) {tokens, groups},
inline constexpr mma_units::WgmmaShapeInfo kWgmmaShapes[] = {
    FS_EXACT_UNITS_WGMMA_SHAPES(FS_EXACT_UNITS_WGMMA_INFO)};
#undef FS_EXACT_UNITS_WGMMA_INFO
inline constexpr int kWgmmaShapeCount = sizeof kWgmmaShapes / sizeof kWgmmaShapes[0];

// A single warp copies x: setmaxnreg is not used, so the producer needs no warpgroup.
FS_HOST_DEVICE constexpr int wgmma_threads(int groups) { return groups * 128 + 32; }

// Units of a warp in its ring, at most: groups of copies that a thread can wait for.
inline constexpr int kWgmmaRingStages = 8;

// Shared memory for the partial sums that the other blocks along K send to this one, besides
// barriers and the stages of x.
FS_HOST_DEVICE constexpr int64_t wgmma_sums_bytes(int tokens, int groups, int depth) {
  return depth > 1 ? int64_t{tokens} * groups * mma_units::kGroupRows * 4 : 0;
}

struct WgmmaPlan {
  int shape;        // index into kWgmmaShapes
  int down, depth;  // blocks of a cluster along the rows and along K: 1, 2, 4 or 8
  int stages;       // of x, in shared memory
  int clusters;     // of the launch
  int unit_slots = 16;

  const mma_units::WgmmaShapeInfo& info() const { return kWgmmaShapes[shape]; }
  int threads() const { return wgmma_threads(info().groups); }
  int cluster() const { return down * depth; }  // blocks
  int blocks() const { return cluster() * clusters; }
  int copied_tokens() const { return info().tokens / down; }  // of x, by a block
  int unit_bytes() const { return kUnitBytes + unit_slots * 4; }
  // Stages of the weight ring: whatever shared memory remains.
  int weight_stages() const;
  int64_t shared_bytes() const;

  int64_t tile_rows() const { return int64_t{down} * info().groups * mma_units::kGroupRows; }
  // Steps of a tile, for the first of its blocks along K.
  int64_t tile_steps(int64_t cols) const { return (unit_cols(cols) + depth - 1) / depth; }
  int64_t tiles(int64_t rows, int64_t tokens) const {
    const int64_t down = (rows + tile_rows() - 1) / tile_rows();
    return down * ((tokens + info().tokens - 1) / info().tokens);
  }
  // Whether several clusters share a tile, so that their partial sums have to be added up.
  bool shares_tiles(int64_t rows, int64_t tokens) const {
    return tiles(rows, tokens) % clusters != 0;
  }
  // What a launch needs besides its tensors: arrival counters and floats of the workspace.
  int64_t arrivals(int64_t rows, int64_t tokens) const {
    return shares_tiles(rows, tokens) ? tiles(rows, tokens) * tile_rows() / kUnitRows : 0;
  }
  int64_t partial_floats(int64_t rows, int64_t tokens) const {
    return shares_tiles(rows, tokens) ? 2 * clusters * tile_rows() * info().tokens : 0;
  }

  // The rule that the plan breaks for a product of this size, or null. A launch needs null.
  const char* broken_rule(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu) const;
};

// The launch for tokens >= 1 on a GPU with wgmma and its cost in microseconds; then every launch
// that it was compared with.
Priced<WgmmaPlan> price_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                              int unit_slots);
std::vector<Priced<WgmmaPlan>> list_wgmma(int64_t rows, int64_t cols, int64_t tokens,
                                          const Gpu& gpu, int unit_slots);

inline WgmmaPlan plan_wgmma(int64_t rows, int64_t cols, int64_t tokens, const Gpu& gpu,
                            int unit_slots) {
  return price_wgmma(rows, cols, tokens, gpu, unit_slots).launch;
}

}  // namespace flashsparse::exact_units
