// SPDX-License-Identifier: Apache-2.0
// What the stream-K kernel of any packed format is given beside the weight, all of it device
// memory.
#pragma once
#include <cstdint>

namespace flashsparse::linear {

// y [tokens, rows] = x [tokens, cols] times the transposed weight, plus bias [rows] or nothing, all
// of one 16-bit dtype, accumulated in fp32.
struct Arguments {
  const uint16_t* x;     // on 16 bytes; zero from cols up to a multiple of kTileCols
  int x_stride;          // elements from one row of x to the next, a multiple of kTileCols
  const uint16_t* bias;  // or null
  uint16_t* y;           // on 8 bytes
  float* partials;       // workspace: partial_floats() of any content, on 16 bytes
  uint32_t* arrivals;    // arrival counters, one a row of tiles, all zero before and after
  int rows, cols;        // of the weight
  int tokens;            // no more than the shape has
  int tile_rows, tile_cols;
};

}  // namespace flashsparse::linear
