// SPDX-License-Identifier: Apache-2.0
// The epilogue of a warp of the grouped products by wgmma, at the end of a tile: scales, bias, the
// activation and the weights of the router; then the rows of y of its places.
//
// Rows of units of gate and of up alternate, so two neighbouring warps have them. Of every 16 slots
// each warp gives the other its numbers for 8, through shared memory, and stores the activation of
// the 8 others.
#pragma once
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/warp.cuh"
#include "cuda/experts/activation.cuh"
#include "cuda/experts/wgmma_shared.h"
#include "cuda/experts/wgmma_tiles.cuh"

namespace flashsparse::experts {

// `scaled`: whether accumulators are multiplied by scales of rows.
template <class Type, class Shape, bool scaled>
class WgmmaStore {
 public:
  static constexpr int kTokens = Shape::kTokens, kTokenBlocks = kTokens / 8;
  static_assert(kTokenBlocks % 2 == 0, "the two warps of gate and up share the slots");

  // `unit`: the warp's row of units in a tile; `warp`: its number in the block; `exchange`: shared
  // memory of all warps.
  __device__ __forceinline__ WgmmaStore(const WgmmaArguments& a, int unit, int warp,
                                        uint32_t exchange)
      : a_(a), unit_(unit), warp_(warp), exchange_(exchange) {}

  __device__ __forceinline__ void leave(float (&sums)[kTokens / 2], const WgmmaTiles&,
                                        const WgmmaTiles::Tile& tile) const {
    const int unit = tile.row_tile * (a_.down * Shape::kUnits) + unit_;
    if (unit >= a_.unit_rows) return;  // for both of two warps, as gated rows of units are even
    const int filled = count_slots(tile.slot_block);
    if (a_.gated) {
      store_gated(sums, tile, unit, filled);
    } else {
      store_plain(sums, tile, unit, filled);
    }
  }

 private:
  static __device__ __forceinline__ int group() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int pair() { return threadIdx.x % 4 * 2; }
  // The first of the four rows that a lane stores (as in mma_units/wgmma_y.cuh).
  static __device__ __forceinline__ int place() {
    return threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4;
  }

  // The slots of a block, which its padding follows.
  __device__ __forceinline__ int count_slots(int slot_block) const {
    const int* const slots = a_.order.slots + int64_t{slot_block} * kTokens;
    int count = 0;
    FS_UNROLL
    for (int i = 0; i < kTokens; i += 32) {
      const int at = i + static_cast<int>(threadIdx.x % 32);
      count += __popc(__ballot_sync(~0u, at < kTokens && slots[at] < a_.slots));
    }
    return count;
  }

  // Scale and bias of the lane's two rows.
  struct Rows {
    float scale[2], bias[2];
  };
  // `row`: of the unit's first in y; `first_bias`: the number of the bias of row 0 of y.
  __device__ __forceinline__ Rows rows_of(const WgmmaTiles::Tile& tile, int unit, int row,
                                          int64_t first_bias) const {
    Rows rows;
    const int64_t scales = (int64_t{tile.expert} * a_.unit_rows + unit) * 16 + group();
    FS_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int own = row + group() + 8 * i;
      rows.scale[i] = scaled ? a_.scales[scales + 8 * i] : 1.0f;
      rows.bias[i] = a_.bias && own < a_.rows ? to_float<Type>(a_.bias[first_bias + own]) : 0.0f;
    }
    return rows;
  }

  // Weights of the router for the two slots that a lane has sums of.
  __device__ __forceinline__ float2 weights_of(int64_t place) const {
    return a_.weights ? *reinterpret_cast<const float2*>(a_.weights + place + pair())
                      : make_float2(1, 1);
  }

  __device__ __forceinline__ void store_plain(const float (&sums)[kTokens / 2],
                                              const WgmmaTiles::Tile& tile, int unit,
                                              int filled) const {
    const int row = unit * 16;
    const int64_t first = int64_t{tile.slot_block} * kTokens;
    const Rows rows = rows_of(tile, unit, row, int64_t{tile.expert} * a_.rows);
    FS_UNROLL
    for (int n = 0; n < kTokenBlocks; ++n) {
      if (n * 8 >= filled) break;
      const float2 weights = weights_of(first + n * 8);
      float y[4];
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        y[i] = fmaf(sums[4 * n + i], rows.scale[i / 2], rows.bias[i / 2]) *
               (i % 2 ? weights.y : weights.x);
      }
      store(y, first + n * 8, row, filled - n * 8);
    }
  }

  __device__ __forceinline__ void store_gated(const float (&sums)[kTokens / 2],
                                              const WgmmaTiles::Tile& tile, int unit,
                                              int filled) const {
    const int row = unit / 2 * 16;
    const bool is_up = unit % 2 != 0;
    const int64_t first = int64_t{tile.slot_block} * kTokens;
    const int64_t biases = (int64_t{2} * tile.expert + is_up) * a_.rows;
    const Rows rows = rows_of(tile, unit, row, biases);
    const auto finished = [&](int n) {
      const float2 weights = weights_of(first + n * 8);
      float of[4];
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        of[i] = fmaf(sums[4 * n + i] * rows.scale[i / 2], i % 2 ? weights.y : weights.x,
                     rows.bias[i / 2]);
      }
      return make_float4(of[0], of[1], of[2], of[3]);
    };
    const uint32_t lane = threadIdx.x % 32 * uint32_t{sizeof(float4)};
    const uint32_t own = exchange_ + warp_ * kWgmmaExchange + lane;
    const uint32_t other = exchange_ + (warp_ ^ 1) * kWgmmaExchange + lane;
    FS_UNROLL
    for (int n = 0; n < kTokenBlocks; n += 2) {
      if (n * 8 >= filled) break;
      const float4 even = finished(n), odd = finished(n + 1);
      // Double-buffered: one barrier suffices, since a buffer is rewritten only two barriers later,
      // or after the wgmma of another tile, which both warps have to have begun.
      const uint32_t buffer = n / 2 % 2 * (kWgmmaExchange / 2);
      store_shared(own + buffer, is_up ? even : odd);
      sync_threads_of(1 + warp_ / 2, 64);
      const float4 given = load_shared<float4>(other + buffer);
      const float4 gate = is_up ? given : even, up = is_up ? odd : given;
      const float y[4] = {
          activated(a_.activation, gate.x, up.x), activated(a_.activation, gate.y, up.y),
          activated(a_.activation, gate.z, up.z), activated(a_.activation, gate.w, up.w)};
      const int block = n + is_up;
      store(y, first + block * 8, row, filled - block * 8);
    }
  }

  // Stores 8 places of the 16 rows from `row` on, of which `filled` have a slot.
  __device__ __forceinline__ void store(const float (&y)[4], int64_t first, int row,
                                        int filled) const {
    const bool odd = threadIdx.x % 2 != 0;
    const bool has[2] = {row + group() < a_.rows, row + group() + 8 < a_.rows};
    const uint32_t upper =
        transpose_8x8(from_floats<Type>(has[0] ? y[0] : 0.0f, has[0] ? y[1] : 0.0f));
    const uint32_t lower =
        transpose_8x8(from_floats<Type>(has[1] ? y[2] : 0.0f, has[1] ? y[3] : 0.0f));
    const uint32_t other = __shfl_xor_sync(~0u, odd ? upper : lower, 1);
    const int column = row + place();
    if (group() >= filled || column >= a_.y_stride) return;
    uint16_t* const to = a_.y + ((first + group()) * a_.y_stride + column);
    store_global(reinterpret_cast<uint2*>(to),
                 odd ? make_uint2(other, lower) : make_uint2(upper, other));
  }

  const WgmmaArguments& a_;
  const int unit_, warp_;
  const uint32_t exchange_;
};

}  // namespace flashsparse::experts
