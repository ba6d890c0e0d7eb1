// SPDX-License-Identifier: Apache-2.0
// What the plans of the wgmma kernels have in common: the numbers of a launch, what follows from
// them, and rules that they must not break. Tiles, steps and clusters: wgmma_shape.h.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "cuda/mma_units/wgmma_shape.h"
#include "cuda/shared/gpu.h"
#include "formats/mma_units.h"

namespace flashsparse::mma_units {

// Shared memory for the partial sums that the other blocks along K send to this one, besides
// barriers and the stages of x.
FS_HOST_DEVICE constexpr int64_t wgmma_sums_bytes(int tokens, int groups, int depth) {
  return depth > 1 ? int64_t{tokens} * groups * kGroupRows * 4 : 0;
}

// Units of a warp in a ring of weights, at most: groups of copies that a thread can wait for.
inline constexpr int kWgmmaRingStages = 8;

// `kShapes` are the format's compiled shapes.
template <const auto& kShapes>
struct WgmmaPlan {
  int shape;        // index into kShapes
  int down, depth;  // blocks of a cluster along the rows and along K: 1, 2, 4 or 8
  int stages;       // of x, in shared memory: panels
  int clusters;     // of the launch

  const auto& info() const { return kShapes[shape]; }
  int cluster() const { return down * depth; }  // blocks
  int blocks() const { return cluster() * clusters; }
  int copied_tokens() const { return info().tokens / down; }  // of x, by a block

  int64_t tile_rows() const { return int64_t{down} * info().groups * kGroupRows; }
  // Steps of a tile, for the first of its blocks along K.
  int64_t tile_steps(int64_t cols) const { return (unit_cols(cols) + depth - 1) / depth; }
  int64_t tiles(int64_t rows, int64_t tokens) const {
    const int64_t tiles_down = (rows + tile_rows() - 1) / tile_rows();
    return tiles_down * ((tokens + info().tokens - 1) / info().tokens);
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

 protected:
  // The rule of these that a plan breaks, or null: whatever it multiplies,
  const char* broken_cluster(const Gpu& gpu) const {
    if (!gpu.has_wgmma()) return "the GPU has no wgmma: it needs compute capability 9.0";
    constexpr int kShapeCount = sizeof kShapes / sizeof kShapes[0];
    if (shape < 0 || shape >= kShapeCount) return "there is no such shape";
    const auto is_power = [](int n) { return n >= 1 && n <= kMostCluster && (n & (n - 1)) == 0; };
    if (!is_power(down) || !is_power(depth) || cluster() > kMostCluster)
      return "a cluster has 1, 2, 4 or 8 blocks, each way and in all";
    if (!wgmma_shares(info().tokens, down) || !wgmma_shares(info().tokens, depth))
      return "blocks of a cluster share the tokens of a tile in eights";
    if (stages < 2 || stages > kMostXStages) return "x has 2 to 16 stages";
    return nullptr;
  }

  // of stages that have info().stage_panels() panels,
  const char* broken_stages() const {
    if (stages < 2 * info().stage_panels())
      return "x has two stages at least, of two panels up to 128 tokens";
    return nullptr;
  }

  // and for a product of this size, where it breaks none of broken_cluster().
  const char* broken_tiles(int64_t rows, int64_t cols, int64_t tokens) const {
    constexpr int64_t kMostArrivals = 4096;
    if (rows < 1 || cols < 1 || tokens < 1) return "there is nothing to multiply";
    if (rows > INT32_MAX / 2 || cols > INT32_MAX / 2 || tokens > INT32_MAX / 2)
      return "there are too many rows, columns or tokens";
    if (depth > unit_cols(cols)) return "there are fewer units of columns than blocks for them";
    const int64_t count = tiles(rows, tokens), steps = count * tile_steps(cols);
    if (depth > 1 && clusters != count)
      return "blocks behind each other have one tile, and there are as many clusters as tiles";
    if (clusters < 1 || clusters > steps) return "a cluster has at least one step";
    if (count > INT32_MAX || steps * (int64_t{clusters} + 1) > INT32_MAX)
      return "there are too many steps";
    if (arrivals(rows, tokens) > kMostArrivals) return "too many tiles would be shared";
    return nullptr;
  }
};

// Shared memory of a block: all of it, or what lies before its ring of weights if it has one.
template <class Plan>
int64_t wgmma_bytes_before_ring(const Plan& plan) {
  const auto& info = plan.info();
  return kWgmmaBarriers + plan.stages * wgmma_stage_bytes(info.tokens) +
         wgmma_sums_bytes(info.tokens, info.groups, plan.depth);
}

}  // namespace flashsparse::mma_units
