// SPDX-License-Identifier: Apache-2.0
// Arguments of the wgmma kernels besides the tensor map of x, all of them device memory.
#pragma once
#include <cstdint>

#include "cuda/shared/divider.h"
#include "formats/mma_units.h"

namespace flashsparse::mma_units {

// y [tokens, rows] = x [tokens, cols] times the transposed weight, plus bias [rows] or nothing, all
// of one 16-bit dtype; accumulated in fp32, or in int32 for int8 by int8.
struct WgmmaArguments {
  const uint32_t* units;  // 16-byte aligned
  const float* scales;    // of rows, by which sums are multiplied; or null, where there are none
  const float* x_scales;  // [tokens]; null for 1, unless x is 8-bit codes
  const uint16_t* bias;   // or null
  uint16_t* y;            // 4-byte aligned
  float* partials;        // workspace: plan.partial_floats() of any content, 16-byte aligned
  uint32_t* arrivals;     // arrival counters, plan.arrivals(), all zero before and after
  int rows, cols;         // of the weight
  int tokens;
  int weight_stages;  // of a ring of weights, if there is one

  // The launch, by `cut`: from the plan (wgmma_shape.h), and what each block would divide for.
  int down, depth, stages;
  int unit_rows, unit_cols;  // of the weight
  int across;                // tiles of the same rows
  int columns, longer;       // steps of a tile for a block along K; so many blocks have one more
  int steps, clusters;       // of all tiles, where depth is 1
  Divider by_cluster{1}, by_depth{1}, by_across{1}, by_columns{1}, by_steps{1}, by_clusters{1};

  FS_HOST_DEVICE constexpr int cluster() const { return down * depth; }  // blocks

  template <class Plan>
  void cut(const Plan& plan) {
    down = plan.down;
    depth = plan.depth;
    stages = plan.stages;
    unit_rows = static_cast<int>(mma_units::unit_rows(rows));
    unit_cols = static_cast<int>(mma_units::unit_cols(cols));
    across = (tokens - 1) / plan.info().tokens + 1;
    columns = unit_cols / depth;
    longer = unit_cols % depth;
    steps = static_cast<int>(plan.tiles(rows, tokens) * columns);
    clusters = plan.clusters;
    by_cluster = Divider(cluster());
    by_depth = Divider(depth);
    by_across = Divider(across);
    by_columns = Divider(columns);
    by_steps = Divider(steps);
    by_clusters = Divider(clusters);
  }
};

}  // namespace flashsparse::mma_units
