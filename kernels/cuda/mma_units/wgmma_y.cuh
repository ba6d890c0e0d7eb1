// SPDX-License-Identifier: Apache-2.0
// Stores y of a warp's 16 rows, for the tokens of a tile.
//
// For 8 tokens a lane has accumulators of two, in the rows lane / 4 and 8 below. Transposed, and
// after an exchange with its neighbour, it has four rows of one token, so that four lanes fill a
// sector of 32 bytes: odd lanes rows 8 to 15, even ones 0 to 7, with the lower half of these in
// lanes 0 and 1 of four.
#pragma once
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/mma_units/token_scales.h"
#include "cuda/mma_units/wgmma_arguments.h"

namespace flashsparse::mma_units {

// `restored`: by what sums are multiplied besides, as products of widened values are that much too
// small (kWidenedByte in widen.cuh).
template <class Type, TokenScales token_scales, int restored>
class WgmmaY {
 public:
  __device__ __forceinline__ WgmmaY(const WgmmaArguments& a, int first_row, int first_token)
      : a_(a),
        tokens_(a.tokens - first_token),
        rows_(a.rows - first_row - place()),
        upper_(a, first_row + group()),
        lower_(a, first_row + group() + 8),
        y_(a.y + ((int64_t{first_token} + group()) * a.rows + first_row + place())) {}

  // From the tile's first token on.
  __device__ __forceinline__ int tokens() const { return tokens_; }

  // Scales, adds the bias, rounds and stores accumulators of the tokens from 8 n on: two of each
  // row.
  __device__ __forceinline__ void store(int n, float4 sums) const {
    if (token_scales == TokenScales::kAlways ||
        (token_scales == TokenScales::kOptional && a_.x_scales)) {
      const float one = x_scale(8 * n + pair()), other = x_scale(8 * n + pair() + 1);
      sums.x *= one, sums.y *= other, sums.z *= one, sums.w *= other;
    }
    const bool odd = threadIdx.x % 2 != 0;
    const uint32_t upper = transpose_8x8(from_floats<Type>(upper_.of(sums.x), upper_.of(sums.y)));
    const uint32_t lower = transpose_8x8(from_floats<Type>(lower_.of(sums.z), lower_.of(sums.w)));
    const uint32_t other = __shfl_xor_sync(~0u, odd ? upper : lower, 1);
    if (n * 8 + group() < tokens_) {
      store_four(y_ + int64_t{8 * n} * a_.rows,
                 odd ? make_uint2(other, lower) : make_uint2(upper, other));
    }
  }

 private:
  static constexpr bool kScaled = token_scales != TokenScales::kNone;  // native values are not

  // Scale and bias of a row.
  struct Row {
    __device__ __forceinline__ Row(const WgmmaArguments& a, int row)
        : scale(kScaled && a.scales && row < a.rows ? a.scales[row] * restored : 1.0f),
          bias(a.bias && row < a.rows ? to_float<Type>(a.bias[row]) : 0.0f) {}
    __device__ __forceinline__ float of(float sum) const { return sum * scale + bias; }

    const float scale, bias;
  };

  static __device__ __forceinline__ int group() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int pair() { return threadIdx.x % 4 * 2; }
  static __device__ __forceinline__ int place() {
    return threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4;
  }
  // A pointer of its own would cost registers, which 256 tokens of 4-bit values do not have.
  __device__ __forceinline__ float x_scale(int token) const {
    return token < tokens_ ? a_.x_scales[a_.tokens - tokens_ + token] : 0.0f;
  }

  __device__ __forceinline__ void store_four(uint16_t* place, const uint2& four) const {
    if (a_.rows % 4 == 0) {
      if (rows_ > 0) store_global(reinterpret_cast<uint2*>(place), four);
    } else {
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        const uint32_t two = i < 2 ? four.x : four.y;
        if (i < rows_) store_global(place + i, static_cast<uint16_t>(two >> i % 2 * 16));
      }
    }
  }

  const WgmmaArguments& a_;
  const int tokens_, rows_;  // rows_ from the lane's first on
  const Row upper_, lower_;  // the rows that the lane has sums of
  uint16_t* const y_;
};

}  // namespace flashsparse::mma_units
