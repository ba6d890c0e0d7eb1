// SPDX-License-Identifier: Apache-2.0
// The epilogue of a block: stores its tile of y. If blocks share a tile, the last one adds up the
// partial sums of all in the workspace, always in the same order.
#pragma once
#include "common/memory.cuh"
#include "cuda/nm_spmm/multiply.cuh"
#include "cuda/shared/partial_sums.cuh"

namespace flashsparse::nm_spmm {

// Stores four rows of a token of y; row is a multiple of 4.
__device__ __forceinline__ void store_quad(const Arguments& a, int token, int row,
                                           const float4& sum) {
  if (token >= a.tokens || row >= a.rows) return;
  float* const place = a.y + (int64_t{token} * a.rows + row);
  if (a.rows % 4 == 0) {
    store_global(reinterpret_cast<float4*>(place), sum);
  } else {
    store_global(place, sum.x);
    if (row + 1 < a.rows) store_global(place + 1, sum.y);
    if (row + 2 < a.rows) store_global(place + 2, sum.z);
    if (row + 3 < a.rows) store_global(place + 3, sum.w);
  }
}

// The bias of four rows, or zeros.
__device__ __forceinline__ float4 bias_of(const Arguments& a, int row) {
  const auto of = [&](int i) { return a.bias && i < a.rows ? a.bias[i] : 0.0f; };
  return make_float4(of(row), of(row + 1), of(row + 2), of(row + 3));
}

// Position of a block's tile of y. Tiles that run concurrently share columns of x and values.
struct TilePlace {
  static constexpr int kBand = 8;  // token tiles that advance through the rows together

  int token, row;

  __device__ __forceinline__ TilePlace(const Arguments& a) {
    const int tile = blockIdx.x, in_band = kBand * a.row_tiles;
    const int first = tile / in_band * kBand, band = min(kBand, a.token_tiles - first);
    row = (tile - first * a.row_tiles) / band;
    token = first + (tile - first * a.row_tiles) % band;
  }
};

template <class Shape>
class WriteY {
 public:
  __device__ __forceinline__ WriteY(const Arguments& a, const TilePlace& place,
                                    const Tile<Shape>& tile, uint32_t shared)
      : a_(a),
        token_(place.token * Shape::kTokens),
        row_(place.row * Shape::kRows),
        shared_(shared) {
    FS_UNROLL
    for (int quad = 0; quad < Shape::kRowQuads; ++quad)
      bias_[quad] = bias_of(a, row_ + tile.row_of(quad));
  }

  __device__ __forceinline__ void run(const Tile<Shape>& tile) const {
    FS_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const float4 sums = tile.sums(quad / Shape::kRowQuads, quad % Shape::kRowQuads);
      if (gridDim.y == 1) {
        write(tile, quad, sums);
      } else {
        store_global(partials(blockIdx.y) + quad * Shape::kThreads, sums);
      }
    }
    if (gridDim.y > 1) add_splits(tile);
  }

 private:
  static constexpr int kQuads = Shape::kThreadTokens * Shape::kRowQuads;  // of a thread

  __device__ __forceinline__ void add_splits(const Tile<Shape>& tile) const {
    if (!last_block(a_.arrivals + blockIdx.x, gridDim.y - 1, shared_)) return;
    constexpr int kMine = 2, kAhead = 2;  // what registers allow
    static_assert(kQuads % kMine == 0 && kMine % Shape::kRowQuads == 0);
    FS_NO_UNROLL
    for (int begin = 0; begin < kQuads; begin += kMine) {
      float4 sums[kMine] = {};
      add_in_order<kAhead>(sums, gridDim.y, [&](int split, int q) {
        return load_l2(partials(split) + (begin + q) * Shape::kThreads);
      });
      FS_UNROLL
      for (int q = 0; q < kMine; ++q) write(tile, begin + q, sums[q]);
    }
  }

  // partials[splits][tiles][quads][threads]
  __device__ __forceinline__ float4* partials(uint32_t split) const {
    return reinterpret_cast<float4*>(a_.partials) +
           (int64_t{split} * gridDim.x + blockIdx.x) * (kQuads * Shape::kThreads) + threadIdx.x;
  }

  __device__ __forceinline__ void write(const Tile<Shape>& tile, int quad,
                                        const float4& sum) const {
    const int row_quad = quad % Shape::kRowQuads;
    store_quad(a_, token_ + tile.token_of(quad / Shape::kRowQuads), row_ + tile.row_of(row_quad),
               add(sum, bias_[row_quad]));
  }

  const Arguments& a_;
  const int token_, row_;  // first of the tile
  const uint32_t shared_;  // address of the block's flag
  float4 bias_[Shape::kRowQuads];
};

}  // namespace flashsparse::nm_spmm
