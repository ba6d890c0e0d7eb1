// SPDX-License-Identifier: Apache-2.0
// The launches of a wgmma kernel that its cost model compares.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cuda/mma_units/wgmma_shape.h"
#include "cuda/shared/gpu.h"

namespace flashsparse::mma_units {

// Clusters that are resident at a time: large ones do not fill every GPC.
inline int64_t wgmma_slots(int cluster, const Gpu& gpu) {
  return (cluster >= 4 ? gpu.multiprocessors * 15 / 16 : gpu.multiprocessors) / cluster;
}

// Gives x as many stages of info().stage_panels() panels as fit; false if two do not.
template <class Plan>
bool give_x_stages(Plan& plan, const Gpu& gpu) {
  const int together = plan.info().stage_panels();
  plan.stages = 0;
  const int64_t room = gpu.shared_bytes - plan.shared_bytes();
  plan.stages = static_cast<int>(
      std::min<int64_t>(room / wgmma_stage_bytes(plan.info().tokens), kMostXStages));
  plan.stages -= plan.stages % together;
  return room > 0 && plan.stages >= 2 * together;
}

// Calls body(plan) for each launch of a shape that breaks no rule.
//
// `own` has the shape, and what else is the format's; `most_down` limits the blocks of a cluster
// along the rows. divide_shared(plan) sets the plan's stages, and says whether shared memory has
// room for them.
template <class Plan, class DivideShared, class Body>
void for_each_wgmma(const Plan& own, int most_down, int64_t rows, int64_t cols, int64_t tokens,
                    const Gpu& gpu, const DivideShared& divide_shared, const Body& body) {
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  for (int down = 1; down <= most_down; down *= 2) {
    for (int depth = 1; down * depth <= kMostCluster; depth *= 2) {
      Plan plan = own;
      plan.down = down;
      plan.depth = depth;
      const int64_t tiles = plan.tiles(rows, tokens), slots = wgmma_slots(plan.cluster(), gpu);
      if (slots < 1 || !divide_shared(plan)) continue;
      // An equal range per cluster; whole tiles per cluster; every tile in equally many parts.
      for (const int64_t clusters : {slots, ceil_div(tiles, ceil_div(tiles, slots)), tiles,
                                     tiles * std::max<int64_t>(slots / tiles, 1)}) {
        plan.clusters = static_cast<int>(std::min(clusters, tiles * plan.tile_steps(cols)));
        if (!plan.broken_rule(rows, cols, tokens, gpu)) body(plan);
      }
    }
  }
}

}  // namespace flashsparse::mma_units
