// SPDX-License-Identifier: Apache-2.0
// What a warp does to the sums of a row tile before they are stored: scales their rows, and adds
// the exceptions in the list. Those join here since over its row's scale such a weight, or its
// product with x, may be out of float32's range.
#pragma once
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/exact_units/linear_arguments.h"
#include "cuda/mma_units/sums_tile.cuh"
#include "formats/exact_units.h"

namespace flashsparse::exact_units {

template <class Shape>
class Finish {
 public:
  static constexpr int kRowUnits = Shape::kRowUnits, kTokenBlocks = Shape::kTokens / 8;
  // With few tokens registers hold the scales of a row tile from its begin on.
  static constexpr bool kHoldsScales = kTokenBlocks <= 2;
  using Tile = mma_units::SumsTile<Shape>;

  __device__ __forceinline__ Finish(const Arguments& a, const mma_units::Cut& cut, int row_warp,
                                    int column_warp)
      : a_(a), cut_(cut), row_warp_(row_warp), column_warp_(column_warp) {}

  // Loads what the row tile needs long before it does, since it comes from memory; what registers
  // have no room for, as far as the L2.
  __device__ __forceinline__ void expect(int set) {
    if (column_warp_ > 0) return;
    const int first = (set * cut_.row_warps + row_warp_) * kRowUnits;
    FS_UNROLL
    for (int i = 0; i < 2 * kRowUnits; ++i) {
      const int row = row_of(first, i);
      const bool inside = row < a_.rows;
      if (kHoldsScales) scales_[i] = inside ? a_.scales[row] : 0.0f;
      if (!kHoldsScales && inside) prefetch(a_.scales + row);
      if (a_.bias && inside) prefetch(a_.bias + row);
    }
    if (first >= cut_.unit_rows) return;
    begin_ = load_readonly(a_.exceptions.offsets + first);
    end_ = load_readonly(a_.exceptions.offsets + min(first + kRowUnits, cut_.unit_rows));
  }

  // Call by all lanes, with the sums of all warps and blocks.
  __device__ __forceinline__ void operator()(Tile& sums, int row_unit) const {
    FS_UNROLL
    for (int i = 0; i < 2 * kRowUnits; ++i) {
      float scale = scales_[i];
      if (!kHoldsScales) {
        const int row = row_of(row_unit, i);
        scale = row < a_.rows ? a_.scales[row] : 0.0f;
      }
      FS_UNROLL
      for (int n = 0; n < kTokenBlocks; ++n) {
        sums[i / 2][n][i % 2 * 2] *= scale;
        sums[i / 2][n][i % 2 * 2 + 1] *= scale;
      }
    }
    FS_NO_UNROLL
    for (uint32_t i = begin_; i < end_; ++i) {
      const uint32_t column = load_readonly(a_.exceptions.list + 2 * uint64_t{i});
      const uint32_t value = load_readonly(a_.exceptions.list + 2 * uint64_t{i} + 1);
      const uint32_t row = (value - row_unit * kUnitRows) & 0xffff;
      if (row % 8 == threadIdx.x % 32 / 4) add(sums, row, column, value);
    }
    __syncwarp();
  }

 private:
  static __device__ __forceinline__ int row_of(int row_unit, int i) {
    return row_unit * kUnitRows + i * 8 + threadIdx.x % 32 / 4;
  }

  // Adds the products of one weight and this lane's tokens.
  __device__ __forceinline__ void add(Tile& sums, uint32_t row, uint32_t column,
                                      uint32_t value) const {
    const float weight = to_float<BFloat16>(static_cast<uint16_t>(value >> 16));
    FS_UNROLL
    for (int i = 0; i < 2 * kTokenBlocks; ++i) {
      const int token = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
      if (token >= a_.tokens) continue;
      const float x = to_float<BFloat16>(a_.x[token * int64_t{a_.x_stride} + column]);
      FS_UNROLL
      for (uint32_t half = 0; half < 2 * kRowUnits; ++half) {
        float& sum = sums[half / 2][i / 2][half % 2 * 2 + i % 2];
        if (row / 8 == half) sum = fmaf(weight, x, sum);
      }
    }
  }

  const Arguments& a_;
  const mma_units::Cut& cut_;
  const int row_warp_, column_warp_;
  uint32_t begin_ = 0, end_ = 0;  // the row tile's part of the list
  float scales_[2 * kRowUnits];   // of the rows that a lane has sums of
};

// The same for a warp of the wgmma kernel.
class WgmmaFinish {
 public:
  __device__ __forceinline__ explicit WgmmaFinish(const WgmmaArguments& a) : a_(a) {}

  // Of a row of units and the tokens of a tile, from its first one on.
  class Tile {
   public:
    __device__ __forceinline__ Tile(const WgmmaArguments& a, int row_unit, int token)
        : a_(a),
          first_(row_unit * kUnitRows),
          token_(token + threadIdx.x % 4 * 2),
          begin_(load_readonly(a.exceptions.offsets + row_unit)),
          end_(load_readonly(a.exceptions.offsets + row_unit + 1)),
          upper_(scale(0)),
          lower_(scale(8)) {}

    // Accumulators of the tokens from 8 n on: two of each of the lane's rows.
    __device__ __forceinline__ float4 operator()(int n, const float4& sums) const {
      float4 y{sums.x * upper_, sums.y * upper_, sums.z * lower_, sums.w * lower_};
      FS_NO_UNROLL
      for (uint32_t i = begin_; i < end_; ++i) {
        const uint32_t value = load_readonly(a_.exceptions.list + 2 * uint64_t{i} + 1);
        const uint32_t row = (value - first_) & 0xffff;
        if (row % 8 != threadIdx.x % 32 / 4) continue;
        const uint32_t column = load_readonly(a_.exceptions.list + 2 * uint64_t{i});
        const float weight = to_float<BFloat16>(static_cast<uint16_t>(value >> 16));
        const float one = x(8 * n, column), other = x(8 * n + 1, column);
        if (row < 8) {
          y.x = fmaf(weight, one, y.x), y.y = fmaf(weight, other, y.y);
        } else {
          y.z = fmaf(weight, one, y.z), y.w = fmaf(weight, other, y.w);
        }
      }
      __syncwarp();
      return y;
    }

   private:
    __device__ __forceinline__ float scale(int below) const {
      const int row = first_ + below + threadIdx.x % 32 / 4;
      return row < a_.rows ? a_.scales[row] : 0.0f;
    }
    // Of a token after the lane's first one; 0 past the last.
    __device__ __forceinline__ float x(int after, uint32_t column) const {
      const int token = token_ + after;
      if (token >= a_.tokens) return 0;
      return to_float<BFloat16>(a_.x[token * int64_t{a_.x_stride} + column]);
    }

    const WgmmaArguments& a_;
    const int first_, token_;
    const uint32_t begin_, end_;
    const float upper_, lower_;
  };
  __device__ __forceinline__ Tile of_tile(int row_unit, int token) const {
    return {a_, row_unit, token};
  }

 private:
  const WgmmaArguments& a_;
};

}  // namespace flashsparse::exact_units
