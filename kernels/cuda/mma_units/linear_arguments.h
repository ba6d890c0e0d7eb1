// SPDX-License-Identifier: Apache-2.0
// Arguments of the decode kernels, all of them device memory.
#pragma once
#include <cstdint>

#include "cuda/shared/divider.h"
#include "formats/mma_units.h"

namespace flashsparse::mma_units {

// y [tokens, rows] = x [tokens, cols] times the transposed weight, plus bias [rows] or nothing, all
// of one 16-bit dtype; accumulated in fp32, or in int32 for int8 by int8.
struct Arguments {
  const uint32_t* units;  // 16-byte aligned
  const float* scales;    // of rows, by which sums are multiplied; or null, where there are none
  const uint16_t* x;  // 16-byte aligned; zero from cols up to a multiple of 8, of codes to the end
  int x_stride;       // from one row of x to the next, in 16 bits, a multiple of 8
  const uint16_t* bias;  // or null
  uint16_t* y;           // 4-byte aligned
  float* partials;       // workspace: plan.partial_floats() of any content, 16-byte aligned
  uint32_t* arrivals;    // arrival counters, plan.arrivals(), all zero before and after
  int rows, cols;        // of the weight
  int tokens;            // no more than the shape has
  // By TokenScales:
  const float* x_scales;   // [tokens]
  const uint32_t* x_sums;  // sum of each token's codes, modulo 2^32, for accumulators of uint32_t
};

// Parameters of the launch, from the format's plan, and what each block would divide for.
struct Cut {
  int row_warps, column_warps, weight_stages, x_stages;
  int stages_before_x = 1;   // of the weight, that a warp begins to copy before x
  int unit_rows, unit_cols;  // of the weight
  int set_steps, steps;      // of a row tile, and of all
  Divider by_column_warps, by_set_steps, by_steps, by_blocks;

  template <class Plan>
  Cut(const Plan& plan, int weight_stages, int64_t rows, int64_t cols)
      : row_warps(plan.row_warps),
        column_warps(plan.column_warps),
        weight_stages(weight_stages),
        x_stages(plan.x_stages),
        unit_rows(static_cast<int>(mma_units::unit_rows(rows))),
        unit_cols(static_cast<int>(mma_units::unit_cols(cols))),
        set_steps(static_cast<int>(plan.set_steps(cols))),
        steps(static_cast<int>(plan.sets(rows) * plan.set_steps(cols))),
        by_column_warps(plan.column_warps),
        by_set_steps(set_steps),
        by_steps(steps),
        by_blocks(plan.blocks) {}
};

}  // namespace flashsparse::mma_units
