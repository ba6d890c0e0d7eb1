// SPDX-License-Identifier: Apache-2.0
// The end of a block: its warps' sums are added up in shared memory, those of blocks that share
// rows in the workspace, each time in one order.
#pragma once
#include "common/memory.cuh"
#include "cuda/linear_y.cuh"
#include "cuda/nm_gather/linear_shape.h"

namespace flashsparse::nm_gather {

// Stores the sums of a warp, in accumulators of mma, as [token][row] on its part of shared memory.
template <class Shape>
__device__ __forceinline__ void store_sums(const float (&sums)[Shape::kTiles][Shape::kPlanes][4],
                                           uint32_t part, int lane) {
  FS_UNROLL
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    FS_UNROLL
    for (int plane = 0; plane < Shape::kPlanes; ++plane) {
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (Shape::kUnitRows == 8 && i >= 2) continue;
        const int token = plane * 8 + lane % 4 * 2 + i % 2;
        const int row = tile * 16 + i / 2 * 8 + lane / 4;
        store_shared(part + (token * Shape::kSumStride + row) * uint32_t{sizeof(float)},
                     sums[tile][plane][i]);
      }
    }
  }
}

// All warps have stored. Sums are numbered by quads, four rows of a token, over the rows of the
// block.
template <class Type, class Shape>
class AddSums {
 public:
  __device__ __forceinline__ AddSums(const Arguments& a, uint32_t shared)
      : a_(a), shared_(shared), across_(a.row_warps * kUnitQuads), count_(a.tokens * across_) {}

  __device__ __forceinline__ void run() const {
    const bool whole = gridDim.y == 1;
    FS_NO_UNROLL
    for (int quad = threadIdx.x; quad < count_; quad += blockDim.x) {
      const float4 sum = sum_of_warps(quad);
      if (whole) {
        store(quad, sum);
      } else {
        store_global(partials(blockIdx.y) + quad, sum);
      }
    }
    if (!whole) add_blocks();
  }

 private:
  static constexpr int kUnitQuads = Shape::kUnitRows / 4;
  static constexpr uint32_t kPartBytes = Shape::kTokens * Shape::kSumStride * sizeof(float);

  __device__ __forceinline__ float4 sum_of_warps(int quad) const {
    const int token = quad / across_, place = quad - token * across_;
    const int unit = place / kUnitQuads, row = place % kUnitQuads * 4;
    uint32_t from =
        shared_ + unit * kPartBytes + (token * Shape::kSumStride + row) * uint32_t{sizeof(float)};
    float4 sum = load_shared<float4>(from);
    FS_NO_UNROLL
    for (int i = 1; i < a_.depth_warps; ++i) {
      from += a_.row_warps * kPartBytes;
      sum = add(sum, load_shared<float4>(from));
    }
    return sum;
  }

  // The last to arrive of the blocks that share rows adds up what all have left.
  __device__ __forceinline__ void add_blocks() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t before = arrive(a_.arrivals + blockIdx.x);
      if (before == gridDim.y - 1) a_.arrivals[blockIdx.x] = 0;
      store_shared(shared_ + a_.flag, before);
    }
    __syncthreads();
    if (load_shared<uint32_t>(shared_ + a_.flag) != gridDim.y - 1) return;
    FS_NO_UNROLL
    for (int quad = threadIdx.x; quad < count_; quad += blockDim.x) {
      float4 sum = load_l2(partials(0) + quad);
      FS_UNROLL_BY(4)
      for (uint32_t split = 1; split < gridDim.y; ++split) {
        sum = add(sum, load_l2(partials(split) + quad));
      }
      store(quad, sum);
    }
  }

  // partials[splits][blocks of rows][tokens][rows of the block]
  __device__ __forceinline__ float4* partials(uint32_t split) const {
    return reinterpret_cast<float4*>(a_.partials) +
           (int64_t{split} * gridDim.x + blockIdx.x) * count_;
  }

  __device__ __forceinline__ void store(int quad, const float4& sum) const {
    const int token = quad / across_;
    const int row = (blockIdx.x * across_ + (quad - token * across_)) * 4;
    store_y<Type>(a_.y, a_.bias, a_.rows, token, row, sum);
  }

  const Arguments& a_;
  const uint32_t shared_;
  const int across_, count_;
};

}  // namespace flashsparse::nm_gather
