// SPDX-License-Identifier: Apache-2.0
// The epilogue of a warp of the decode kernels, at the end of a row tile or of the block's part of
// it. Warps along the columns add up their accumulators in shared memory, those of blocks that
// share the row tile in the workspace (partial_sums.cuh).
#pragma once
#include <type_traits>

#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/registers.cuh"
#include "common/warp.cuh"
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/mma_units/partial_sums.cuh"
#include "cuda/mma_units/steps.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/mma_units/token_scales.h"

namespace flashsparse::mma_units {

// `scaled`: whether accumulators are multiplied by scales of rows. Accumulators of uint32_t are
// modulo 2^32: products of the weight's bytes code + 128 with the codes of x, from which 128 times
// the sum of the token's codes is subtracted.
template <class Type, class Shape, bool scaled, TokenScales token_scales, class Sum = float>
class Sums {
 public:
  static constexpr int kRowUnits = Shape::kRowUnits, kTokenBlocks = Shape::kTokens / 8;
  // With few tokens registers hold the scales of a row tile from its begin on.
  static constexpr bool kHoldsScales = scaled && kTokenBlocks <= 2;
  // Warps whose accumulators are loaded at once: few where registers are scarce.
  static constexpr int kWarpsAtOnce = kRowUnits * kTokenBlocks <= 2 ? 4 : 1;
  using Tile = SumsTile<Shape, Sum>;

  // `layout`: the format's Shared. Row scales are multiplied by `unit`.
  template <class Layout>
  __device__ __forceinline__ Sums(const Arguments& a, const Cut& cut, const Layout& layout,
                                  int row_warp, int column_warp, uint32_t shared, float unit = 1)
      : a_(a),
        cut_(cut),
        row_warp_(row_warp),
        column_warp_(column_warp),
        unit_(unit),
        warp_bytes_(layout.sums_warp),
        place_(shared + layout.sums + row_warp * cut.column_warps * layout.sums_warp +
               threadIdx.x % 32 * uint32_t{sizeof(float4)}) {}

  // Loads the scales of a row tile long before they are needed, since they come from memory; what
  // registers have no room for, as far as the L2.
  __device__ __forceinline__ void expect(int set) {
    if constexpr (scaled) {
      if (column_warp_ > 0) return;
      FS_UNROLL
      for (int i = 0; i < 2 * kRowUnits; ++i) {
        const int row = row_unit(set) * kUnitRows + i * 8 + threadIdx.x % 32 / 4;
        const bool inside = row < a_.rows;
        if (kHoldsScales) scales_[i] = inside ? a_.scales[row] : 0.0f;
        if (!kHoldsScales && inside) prefetch(a_.scales + row);
        if (a_.bias && inside) prefetch(a_.bias + row);
      }
    }
  }

  // `steps` is at a step of the row tile. finish(sums, row_unit) is called by the warp that stores
  // them, before it does.
  template <class Finish>
  __device__ __forceinline__ void leave(Tile& sums, const Steps& steps, const Finish& finish) {
    if (cut_.column_warps > 1) add_warps(sums);
    const int set = steps.set();
    if (column_warp_ > 0 || row_unit(set) >= cut_.unit_rows) return;
    const int first = steps.first_block(set), last = steps.last_block(set);
    if (first < last && !add_blocks(sums, steps, set, first, last)) return;
    if constexpr (token_scales == TokenScales::kOptional) {
      if (a_.x_scales) scale_tokens(sums);
    }
    finish(sums, row_unit(set));
    store(sums, row_unit(set));
  }
  __device__ __forceinline__ void leave(Tile& sums, const Steps& steps) {
    leave(sums, steps, [](Tile&, int) {});
  }

 private:
  // The warp's first row of units of a row tile.
  __device__ __forceinline__ int row_unit(int set) const {
    return (set * cut_.row_warps + row_warp_) * kRowUnits;
  }

  // The first warp along the columns adds up those of all, 8 tokens at a time.
  __device__ __forceinline__ void add_warps(Tile& sums) {
    FS_UNROLL
    for (int n = 0; n < kTokenBlocks; ++n) {
      const uint32_t buffer = place_ + turn_ * (kRowUnits * kSumsBytes);
      if (column_warp_ > 0) {
        FS_UNROLL
        for (int m = 0; m < kRowUnits; ++m) {
          store_shared(buffer + column_warp_ * warp_bytes_ + m * kSumsBytes, moved(sums[m][n]));
        }
      }
      // Double-buffered: one barrier per iteration suffices, since a buffer is rewritten only two
      // iterations later.
      sync_threads_of(1 + row_warp_, cut_.column_warps * 32);
      if (column_warp_ == 0) {
        FS_UNROLL_BY(kWarpsAtOnce)
        for (int warp = 1; warp < cut_.column_warps; ++warp) {
          FS_UNROLL
          for (int m = 0; m < kRowUnits; ++m) {
            add(sums[m][n], load_shared<float4>(buffer + warp * warp_bytes_ + m * kSumsBytes));
          }
        }
      }
      turn_ ^= 1;
    }
  }

  // True for the last of the blocks that share the row tile, which then has the sums of all.
  __device__ __forceinline__ bool add_blocks(Tile& sums, const Steps& steps, int set, int first,
                                             int last) const {
    constexpr int kFours = kRowUnits * kTokenBlocks;
    return reduce<kFours, kFours <= 8 ? kFours : 4>(
        &sums[0][0][0], [&] { return a_.arrivals + set * cut_.row_warps + row_warp_; }, blockIdx.x,
        first, last, [&](int block) { return partials(block, steps.is_first(block, set)); },
        [](int) { return true; });
  }

  // A block has a slot for the first row tile of its range, and one for the last.
  __device__ __forceinline__ float4* partials(int block, bool is_first) const {
    const int64_t warp = (int64_t{block} * 2 + !is_first) * cut_.row_warps + row_warp_;
    return reinterpret_cast<float4*>(a_.partials) + warp * (kRowUnits * kTokenBlocks * 32) +
           threadIdx.x % 32;
  }

  // Scales, rounds, and transposes, so that a lane has two rows of a token instead of two tokens of
  // a row.
  __device__ __forceinline__ void store(const Tile& sums, int row_unit) const {
    // Where registers are scarce in the main loop, not computed before it.
    int lane = threadIdx.x % 32;
    if (kTokenBlocks <= 2) lane = keep(lane);
    const int group = lane / 4, pair = lane % 4 * 2;
    FS_UNROLL
    for (int i = 0; i < 2 * kRowUnits; ++i) {
      const int first = row_unit * kUnitRows + i * 8, row = first + group, column = first + pair;
      const float bias = a_.bias && row < a_.rows ? to_float<Type>(a_.bias[row]) : 0.0f;
      float scale = 1;
      if (kHoldsScales) {
        scale = scales_[i] * unit_;
      } else if (scaled) {
        scale = row < a_.rows ? a_.scales[row] * unit_ : 0.0f;
      }
      uint16_t* place = a_.y + (int64_t{group} * a_.rows + column);
      FS_UNROLL
      for (int n = 0; n < kTokenBlocks; ++n) {
        const Sum* const s = sums[i / 2][n] + i % 2 * 2;
        const float one = number(s[0], n * 8 + pair);
        const float other = number(s[1], n * 8 + pair + 1);
        const uint32_t two =
            transpose_8x8(from_floats<Type>(fmaf(one, scale, bias), fmaf(other, scale, bias)));
        if (n * 8 + group < a_.tokens) store_two(place, two, a_.rows - column);
        place = keep(place + int64_t{8} * a_.rows);
      }
    }
  }

  // Multiplies each accumulator by the scale of its token.
  __device__ __forceinline__ void scale_tokens(Tile& sums) const {
    FS_UNROLL
    for (int i = 0; i < 2 * kTokenBlocks; ++i) {
      const int token = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
      const float scale = token < a_.tokens ? a_.x_scales[token] : 0.0f;
      FS_UNROLL
      for (int m = 0; m < kRowUnits; ++m) {
        sums[m][i / 2][i % 2] *= scale;
        sums[m][i / 2][2 + i % 2] *= scale;
      }
    }
  }

  // The accumulator of a token as a float; of codes, times the token's scale.
  __device__ __forceinline__ float number(Sum sum, int token) const {
    if constexpr (token_scales != TokenScales::kAlways) {
      return sum;
    } else if constexpr (std::is_same_v<Sum, uint32_t>) {
      if (token >= a_.tokens) return 0;
      const auto own = static_cast<int32_t>(sum - 128 * a_.x_sums[token]);
      return static_cast<float>(own) * a_.x_scales[token];
    } else {
      return static_cast<float>(sum) * (token < a_.tokens ? a_.x_scales[token] : 0.0f);
    }
  }

  // Stores two rows of a token if they exist: `rows` are left from this one on.
  __device__ __forceinline__ void store_two(uint16_t* place, uint32_t two, int rows) const {
    if (a_.rows % 2 == 0) {
      if (rows > 0) store_global(reinterpret_cast<uint32_t*>(place), two);
    } else {
      if (rows > 0) store_global(place, static_cast<uint16_t>(two));
      if (rows > 1) store_global(place + 1, static_cast<uint16_t>(two >> 16));
    }
  }

  static __device__ __forceinline__ void add(Sum (&sums)[4], const float4& more) {
    sums[0] += sum_of_bits<Sum>(more.x), sums[1] += sum_of_bits<Sum>(more.y);
    sums[2] += sum_of_bits<Sum>(more.z), sums[3] += sum_of_bits<Sum>(more.w);
  }

  const Arguments& a_;
  const Cut& cut_;
  const int row_warp_, column_warp_;
  const float unit_;
  const uint32_t warp_bytes_, place_;
  uint32_t turn_ = 0;
  float scales_[2 * kRowUnits];  // of the rows that a lane has sums of
};

}  // namespace flashsparse::mma_units
