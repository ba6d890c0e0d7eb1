// SPDX-License-Identifier: Apache-2.0
// The epilogue of a block: partial sums of its warps are added up in shared memory, those of blocks
// that share rows in the workspace, always in the same order.
#pragma once
#include "common/cluster.cuh"
#include "common/memory.cuh"
#include "cuda/mma_units/token_scales.h"
#include "cuda/nm_gather/linear_shape.h"
#include "cuda/shared/linear_y.cuh"
#include "cuda/shared/partial_sums.cuh"

namespace flashsparse::nm_gather {

// Stores a warp's accumulators (layout of mma) as [token][row] to its part of shared memory.
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

// Accumulators of rows `row` to row + 3 times the scales of these rows, if they exist.
__device__ __forceinline__ float4 scaled(const float4& sum, const float* row_scales, int row,
                                         int rows) {
  const auto scale = [&](int i) {
    return row + i < rows ? load_readonly(row_scales + row + i) : 0.0f;
  };
  return make_float4(sum.x * scale(0), sum.y * scale(1), sum.z * scale(2), sum.w * scale(3));
}

// The scale of a token of quantized activations; 1 where `x_scales` is null. Native values have
// none.
template <class Shape>
__device__ __forceinline__ float token_scale(const float* x_scales, int token) {
  if constexpr (token_scales_of(Shape::kValues, 2) == TokenScales::kNone) return 1;
  return x_scales ? x_scales[token] : 1.0f;
}

__device__ __forceinline__ float4 times(const float4& sum, float scale) {
  return make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
}

// A block's part of y, and the blocks that share it.
struct SumsOfBlock {
  uint16_t* y;              // of the block's first token
  const uint16_t* bias;     // or null
  const float* row_scales;  // of codes, [rows]
  const float* x_scales;    // of the block's tokens, or null
  float* partials;          // of all blocks of rows, for its tokens
  uint32_t* arrivals;       // the same
  int rows, tokens;         // of the weight; of the block
  int row_warps, depth_warps;
  int row_block, row_blocks;
  int split, splits;
  uint32_t flag;  // shared address of a word
};

// Adds up and stores y when all warps have stored their sums and passed a barrier. Sums are
// numbered by quads, four rows of a token, over the rows of the block.
template <class Type, class Shape>
class AddSums {
 public:
  __device__ __forceinline__ AddSums(const SumsOfBlock& a, uint32_t shared)
      : a_(a), shared_(shared), across_(a.row_warps * kUnitQuads), count_(a.tokens * across_) {}

  __device__ __forceinline__ void run() const {
    const bool whole = a_.splits == 1;
    FS_NO_UNROLL
    for (int quad = threadIdx.x; quad < count_; quad += blockDim.x) {
      const float4 sum = sum_of_warps(quad);
      if (whole) {
        store(quad, sum);
      } else {
        store_global(partials(a_.split) + quad, sum);
      }
    }
    if (!whole) add_blocks();
  }

  // For splits that are a cluster, after a cluster barrier: each block adds up its share from the
  // shared memory of all. No block may end before all have done so.
  __device__ __forceinline__ void run_in_cluster() const {
    FS_NO_UNROLL
    for (int quad = a_.split * blockDim.x + threadIdx.x; quad < count_;
         quad += a_.splits * blockDim.x) {
      const uint32_t from = address(quad);
      store(quad, sum_in_order(a_.splits, [&](int split) { return load_shared_in(split, from); }));
    }
  }

 private:
  static constexpr int kUnitQuads = Shape::kUnitRows / 4;
  static constexpr uint32_t kPartBytes = Shape::kTokens * Shape::kSumStride * sizeof(float);

  // Shared address of the first warp's sums.
  __device__ __forceinline__ uint32_t address(int quad) const {
    const int token = quad / across_, place = quad - token * across_;
    const int unit = place / kUnitQuads, row = place % kUnitQuads * 4;
    return shared_ + unit * kPartBytes +
           (token * Shape::kSumStride + row) * uint32_t{sizeof(float)};
  }

  __device__ __forceinline__ float4 sum_of_warps(int quad) const {
    uint32_t from = address(quad);
    float4 sum = load_shared<float4>(from);
    FS_UNROLL_BY(4)
    for (int i = 1; i < a_.depth_warps; ++i) {
      from += a_.row_warps * kPartBytes;
      sum = add(sum, load_shared<float4>(from));
    }
    return sum;
  }

  // The last to arrive of the blocks that share rows adds up the partial sums of all.
  __device__ __forceinline__ void add_blocks() const {
    if (!last_block(a_.arrivals + a_.row_block, a_.splits - 1, a_.flag)) return;
    FS_NO_UNROLL
    for (int quad = threadIdx.x; quad < count_; quad += blockDim.x) {
      store(quad,
            sum_in_order(a_.splits, [&](int split) { return load_l2(partials(split) + quad); }));
    }
  }

  // partials[splits][blocks of rows][tokens][rows of the block]
  __device__ __forceinline__ float4* partials(int split) const {
    return reinterpret_cast<float4*>(a_.partials) +
           (int64_t{split} * a_.row_blocks + a_.row_block) * count_;
  }

  __device__ __forceinline__ void store(int quad, const float4& sum) const {
    const int token = quad / across_;
    const int row = (a_.row_block * across_ + (quad - token * across_)) * 4;
    float4 own = sum;
    if constexpr (scaled_by_row(Shape::kValues)) own = scaled(own, a_.row_scales, row, a_.rows);
    own = times(own, token_scale<Shape>(a_.x_scales, token));
    store_y<Type>(a_.y, a_.bias, a_.rows, token, row, own);
  }

  const SumsOfBlock& a_;
  const uint32_t shared_;
  const int across_, count_;
};

}  // namespace flashsparse::nm_gather
