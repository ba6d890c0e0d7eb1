// SPDX-License-Identifier: Apache-2.0
// Arguments of the stream-K kernel besides the weight, for any packed format; all of them device
// memory.
#pragma once
#include <cstdint>

namespace flashsparse::linear {

// y [tokens, rows] = x [tokens, cols] times the transposed weight, plus bias [rows] or nothing, all
// of one 16-bit dtype, accumulated in fp32.
struct Arguments {
  const uint16_t* x;     // 16-byte aligned; zero from cols up to a multiple of kTileCols
  int x_stride;          // elements from one row of x to the next, a multiple of kTileCols
  const uint16_t* bias;  // or null
  uint16_t* y;           // 8-byte aligned
  float* partials;       // workspace: partial_floats() of any content, 16-byte aligned
  uint32_t* arrivals;    // arrival counters, one for each tile row, all zero before and after
  int rows, cols;        // of the weight
  int tokens;            // no more than the shape has
  int tile_rows, tile_cols;
};

}  // namespace flashsparse::linear
