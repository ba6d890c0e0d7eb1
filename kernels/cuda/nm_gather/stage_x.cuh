// SPDX-License-Identifier: Apache-2.0
// Copies x to shared memory, where a column of 8 tokens is one row of 16 bytes, as ldmatrix
// addresses it. A thread loads pieces of 4 columns x 8 tokens and transposes them in registers.
#pragma once
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "cuda/nm_gather/linear_shape.h"

namespace flashsparse::nm_gather {

// Copies columns from first_column on, a multiple of 32. This is number `thread` of `threads`
// threads, each of which has kAhead pieces in flight.
template <class Shape, int kAhead>
__device__ __forceinline__ void stage_x(const Arguments& a, int first_column, uint32_t shared,
                                        int thread, int threads) {
  const int quads = a.chunk_rows / 4, pieces = Shape::kPlanes * quads;
  FS_NO_UNROLL
  for (int begin = thread; begin < pieces; begin += kAhead * threads) {
    uint2 loaded[kAhead][8] = {};
    FS_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const int piece = begin + i * threads, plane = piece * a.per_quad >> kPerQuadBits;
      const int column = first_column + (piece - plane * quads) * 4;
      if (piece >= pieces || column >= a.x_stride) continue;
      const uint16_t* const from = a.x + (int64_t{plane * 8} * a.x_stride + column);
      FS_UNROLL
      for (int token = 0; token < 8; ++token) {
        if (plane * 8 + token < a.tokens) {
          loaded[i][token] =
              load_streaming(reinterpret_cast<const uint2*>(from + int64_t{token} * a.x_stride));
        }
      }
    }
    FS_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const int piece = begin + i * threads, plane = piece * a.per_quad >> kPerQuadBits;
      const int quad = piece - plane * quads;
      if (piece >= pieces) continue;
      const uint2(&u)[8] = loaded[i];
      const int row = plane * a.chunk_rows + x_row(quad * 4);
      FS_UNROLL
      for (int column = 0; column < 4; ++column) {
        const uint32_t half = column % 2 ? 0x7632 : 0x5410;
        const auto two = [&](int token) {
          return column < 2 ? prmt(u[token].x, u[token + 1].x, half)
                            : prmt(u[token].y, u[token + 1].y, half);
        };
        store_shared(shared + (row + column * 8) * 16, make_uint4(two(0), two(2), two(4), two(6)));
      }
    }
  }
}

}  // namespace flashsparse::nm_gather
