// SPDX-License-Identifier: Apache-2.0
// Arguments of the decode kernels, all of them device memory.
#pragma once
#include <cstdint>

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

// Parameters of the launch, from the format's plan.
struct Cut {
  int row_warps, column_warps, weight_stages, x_stages;
};

}  // namespace flashsparse::mma_units
