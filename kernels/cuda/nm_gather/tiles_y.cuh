// SPDX-License-Identifier: Apache-2.0
// Stores a warp's part of a tile of y through its own buffer in shared memory, 8 tokens at a time:
// no other warp waits, and copies for the next tile go on.
#pragma once
#include "common/memory.cuh"
#include "cuda/nm_gather/add_sums.cuh"
#include "cuda/nm_gather/tiles_shape.h"
#include "cuda/shared/linear_y.cuh"

namespace flashsparse::nm_gather {

// Stores sums[mma tile][8 tokens][4], which begin at row `first_row` and token `first_token` of y.
// `row_scales` are used for value types that have them; `place` is a buffer of Shape::kYBytes in
// shared memory, 16-byte aligned.
template <class Type, class Shape>
__device__ __forceinline__ void store_tile(const float (&sums)[Shape::kTiles][Shape::kPlanes][4],
                                           const TileArguments& a, const float* row_scales,
                                           int first_row, int first_token, uint32_t place) {
  constexpr int kQuads = Shape::kUnitRows / 4, kTogether = 32 / kQuads;  // tokens
  constexpr uint32_t kFloat = sizeof(float);
  const int lane = threadIdx.x % 32, quad = lane % kQuads, row = first_row + quad * 4;
  float bias[4];
  FS_UNROLL
  for (int i = 0; i < 4; ++i) {
    bias[i] = a.bias && row + i < a.rows ? to_float<Type>(a.bias[row + i]) : 0.0f;
  }
  const float4 ones = make_float4(1, 1, 1, 1);
  const float4 scale = scaled_by_row(Shape::kValues) ? scaled(ones, row_scales, row, a.rows) : ones;
  FS_UNROLL
  for (int plane = 0; plane < Shape::kPlanes; ++plane) {
    FS_UNROLL
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int token = lane % 4 * 2 + i % 2, in_tile = i / 2 * 8 + lane / 4;
        store_shared(place + (token * Shape::kSumStride + tile * 16 + in_tile) * kFloat,
                     sums[tile][plane][i]);
      }
    }
    __syncwarp();
    FS_UNROLL
    for (int first = 0; first < 8; first += kTogether) {
      const int in_plane = first + lane / kQuads, token = first_token + plane * 8 + in_plane;
      const float4 sum =
          load_shared<float4>(place + (in_plane * Shape::kSumStride + quad * 4) * kFloat);
      if (token < a.tokens) {
        const float4 own = times(scale, token_scale<Shape>(a.x_scales, token));
        store_y<Type>(a.y, nullptr, a.rows, token, row,
                      make_float4(sum.x * own.x + bias[0], sum.y * own.y + bias[1],
                                  sum.z * own.z + bias[2], sum.w * own.w + bias[3]));
      }
    }
    __syncwarp();
  }
}

}  // namespace flashsparse::nm_gather
