// SPDX-License-Identifier: Apache-2.0
// Transposes x [tokens, columns] to tiles of 64 tokens, in which a column is one row of 128 bytes:
// ready for a bulk copy of a panel, for a gather of rows, and for ldmatrix.
//
//   x_tiles  [ceil(tokens / 64)][columns][64] 16-bit; column c is row r = x_row(c), and its tokens
//            8i to 8i + 7 are chunk i ^ r % 8 of 16 bytes: rows of different r % 8 have chunk i in
//            different banks. Tokens and columns beyond x are zero.
//
// A thread loads 4 columns of 8 tokens and transposes them in registers. A warp takes 16 columns of
// all tokens of a tile: it reads whole sectors and writes whole lines.
#pragma once
#include "common/device.cuh"
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "cuda/nm_gather/transpose_x.h"
#include "formats/nm_gather.h"

namespace flashsparse::nm_gather {

// Writes all of x_tiles. `columns` is a multiple of 32, x_stride one of 4; x is 8-byte aligned and
// zero from its last column up to x_stride. Launch with gridDim.x = ceil(columns /
// kTransposeColumns), gridDim.y = tiles or fewer (a block then takes several) and kTransposeThreads
// threads.
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_x_kernel(const uint16_t* __restrict__ x, int x_stride, int tokens, int tiles,
                       int columns, uint16_t* __restrict__ x_tiles) {
  griddepcontrol_launch_dependents();
  const int octet = threadIdx.x / 4 % 8;  // of tokens
  const int quad = threadIdx.x / 32 * 4 + threadIdx.x % 4;
  const int column = blockIdx.x * kTransposeColumns + quad * 4;
  if (column >= columns) return;
  const int row = x_row(column), chunk = octet ^ row % 8;
  FS_NO_UNROLL
  for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t first = int64_t{tile} * kTileTokens + octet * 8;
    const uint16_t* const from = x + (first * x_stride + column);
    uint2 u[8] = {};
    FS_UNROLL
    for (int token = 0; token < 8; ++token) {
      if (first + token < tokens && column < x_stride) {
        u[token] = load_streaming(reinterpret_cast<const uint2*>(from + int64_t{token} * x_stride));
      }
    }
    uint16_t* const to = x_tiles + ((int64_t{tile} * columns + row) * kTileTokens + chunk * 8);
    FS_UNROLL
    for (int i = 0; i < 4; ++i) {  // the next column's row is 8 rows down
      const uint32_t half = i % 2 ? 0x7632 : 0x5410;
      const auto two = [&](int token) {
        return i < 2 ? prmt(u[token].x, u[token + 1].x, half)
                     : prmt(u[token].y, u[token + 1].y, half);
      };
      store_global(reinterpret_cast<uint4*>(to + i * 8 * kTileTokens),
                   make_uint4(two(0), two(2), two(4), two(6)));
    }
  }
}

}  // namespace flashsparse::nm_gather
