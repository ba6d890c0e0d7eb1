// SPDX-License-Identifier: Apache-2.0
// Arguments of the grouped products of a mixture's experts.
#pragma once
#include <cstdint>

#include "cuda/experts/routing.h"
#include "cuda/shared/divider.h"

namespace flashsparse::experts {

// What becomes of gate and up: g * sigmoid(alpha * g) * (u + up_offset), with g at most `limit` and
// u within -limit and limit.
struct Activation {
  float alpha, up_offset, limit;
};

// y [slots, y_stride] = x times the transposed weight of each slot's expert, plus bias; all of one
// 16-bit dtype but accumulated in fp32. Device memory.
//
// Of a gated product rows of 16x256 blocks are alternately of gate and of up: the weight has
// 2 * ceil(rows / 16) of them, and y is the activation of both.
struct Arguments {
  const uint32_t* units;  // [experts][unit_rows][unit_cols], 16-byte aligned
  const float* scales;    // [experts][16 * unit_rows], of the rows in `units`; or null
  const uint16_t* x;      // 16-byte aligned; zero from cols up to a multiple of 8
  int x_stride;           // from one row of x to the next, in 16 bits, a multiple of 8
  const uint16_t* bias;   // [experts][rows]; gated: [experts][2][rows], gate's before up's; or null
  const float* weights;   // of slots, or null: multiply sums before bias if gated, else after it
  uint16_t* y;            // 16-byte aligned; zero from rows up to y_stride
  int y_stride;           // rows rounded up to a multiple of 8
  Order order;            // of blocks of as many slots as the shape has tokens
  int slots;
  int rows, cols;  // of y and x
  Activation activation;
};

// Parameters of a launch, and what each block would divide for.
struct Cut {
  int row_warps, column_warps, weight_stages, x_stages;
  int unit_rows, unit_cols;  // of the weight of an expert
  int sets, set_steps;       // row tiles of an expert; steps along one
  bool gated;
  bool x_resident;     // x stays in shared memory for all row tiles of a block of slots
  bool early_weights;  // the preceding kernel writes x alone: weights need not wait for it
  Divider x_rows;      // x row of a slot: slot / top_k, or slot / 1
  Divider by_column_warps, by_sets, by_blocks;
};

}  // namespace flashsparse::experts
