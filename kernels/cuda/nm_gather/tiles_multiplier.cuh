// SPDX-License-Identifier: Apache-2.0
// How a warp multiplies a pair of steps from the stages of both rings: loads operands, and issues
// mma.
#pragma once
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/nm_gather/fragments.cuh"
#include "cuda/nm_gather/tiles_shape.h"

namespace flashsparse::nm_gather {

// Has the accumulators of a warp, kRows x kWarpTokens, in the layout of mma.
template <class Type, class Shape>
class TileMultiplier {
 public:
  // `row_warp` and `token_warp`: position of the warp in the block.
  __device__ __forceinline__ TileMultiplier(const TileArguments& a, int row_warp, int token_warp)
      : x_tile_bytes_(a.x_tile_bytes),
        x_at_(token_warp * Shape::kWarpTokens / kTileTokens * a.x_tile_bytes),
        values_at_(row_warp * Shape::kUnits * Shape::kUnitBytes + threadIdx.x % 32 * 16),
        scales_at_(row_warp * Shape::kUnits * Shape::kUnitBytes + Shape::kValueBytes +
                   threadIdx.x % 32 / 4 * 16),
        index_at_(a.row_warps * Shape::kUnits * Shape::kUnitBytes + row_warp * kPair +
                  threadIdx.x % 16 / 4 * 4) {}

  // Adds the product of step 0 or 1 of a pair. `panel`: shared address of the first row of x of the
  // step's panel; `stage`: of the stage of weights.
  __device__ __forceinline__ void multiply(int step, uint32_t panel, uint32_t stage) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t byte =
        load_shared<uint32_t>(stage + index_at_ + step * kStep) >> lane % 4 * 8 & 0xff;
    uint32_t a[Shape::kTiles][4];
    FS_UNROLL
    for (int unit = 0; unit < Shape::kUnits; ++unit) load_unit(unit, step, stage, a);
    // A lane addresses one row in two planes of x: the halves of the warp have adjacent planes.
    // Chunk i of row r lies at i ^ r % 8.
    const uint32_t row = panel + x_at_ + byte * 128 + (byte % 8 ^ lane / 16) * 16;
    uint32_t x[2][4];
    ldmatrix_x4<true>(x[0], row);
    FS_UNROLL
    for (int two = 0; two < Shape::kPlanes / 2; ++two) {
      if (two + 1 < Shape::kPlanes / 2) {
        const int next = two + 1;
        ldmatrix_x4<true>(x[next % 2], (row ^ next % 4 * 32) + next / 4 * x_tile_bytes_);
      }
      FS_UNROLL
      for (int half = 0; half < 2; ++half) {
        FS_UNROLL
        for (int tile = 0; tile < Shape::kTiles; ++tile) {
          mma_m16n8k16<Type>(sums[tile][two * 2 + half], a[tile], x[two % 2][half * 2],
                             x[two % 2][half * 2 + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ void clear() {
    FS_UNROLL
    for (int i = 0; i < Shape::kTiles * Shape::kPlanes * 4; ++i) {
      sums[i / 4 / Shape::kPlanes][i / 4 % Shape::kPlanes][i % 4] = 0;
    }
  }

  float sums[Shape::kTiles][Shape::kPlanes][4];

 private:
  // Loads the A operands of a unit and step.
  __device__ __forceinline__ void load_unit(int unit, int step, uint32_t stage,
                                            uint32_t (&a)[Shape::kTiles][4]) const {
    constexpr int kVectors = (Shape::kLaneBytes + 15) / 16;
    const uint32_t from = stage + values_at_ + unit * Shape::kUnitBytes;
    uint4 vectors[kVectors];
    if constexpr (Shape::kLaneBytes < 16) {  // a vector of 16 bytes holds both steps
      const uint2 half = load_shared<uint2>(from + step * Shape::kLaneBytes);
      vectors[0] = make_uint4(half.x, half.y, 0, 0);
    } else {
      FS_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        vectors[i] = load_shared<uint4>(from + (step * kVectors + i) * 512);
      }
    }
    FS_UNROLL
    for (int tile = 0; tile < Shape::kUnitTiles; ++tile) {
      widen_fragment<Type, Shape::kValues>(vectors, tile, a[unit * Shape::kUnitTiles + tile]);
    }
    if constexpr (scaled_by_group(Shape::kValues)) {
      const uint32_t scales_at = stage + scales_at_ + unit * Shape::kUnitBytes;
      const uint2 scales = load_shared<uint2>(scales_at + step * uint32_t{sizeof(uint2)});
      scale_rows<Type>(scales.x, a[unit * 2]);
      scale_rows<Type>(scales.y, a[unit * 2 + 1]);
    }
  }

  const uint32_t x_tile_bytes_, x_at_, values_at_, scales_at_, index_at_;
};

}  // namespace flashsparse::nm_gather
