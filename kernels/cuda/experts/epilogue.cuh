// SPDX-License-Identifier: Apache-2.0
// The epilogue of a warp of a grouped product, at the end of a row tile: warps along the columns
// add up their accumulators; the first one scales them, applies bias, activation and the weights of
// the router, and stores the rows of y of its slots.
#pragma once
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/experts/activation.cuh"
#include "cuda/experts/arguments.h"
#include "cuda/experts/steps.cuh"
#include "cuda/experts/warp_sums.cuh"

namespace flashsparse::experts {

// `scaled`: whether accumulators are multiplied by scales of rows.
template <class Type, class Shape, bool scaled>
class Epilogue : WarpSums<Shape> {
 public:
  static constexpr int kRowUnits = Shape::kRowUnits, kTokenBlocks = Shape::kTokens / 8;
  // Registers hold what belongs to the slots of few tokens; of more it is loaded for each row tile.
  static constexpr bool kHoldsSlots = kTokenBlocks <= 2;
  using Tile = mma_units::SumsTile<Shape>;
  static_assert(kRowUnits % 2 == 0, "gate and up are in one warp");

  // `layout`: mma_units::Shared.
  template <class Layout>
  __device__ __forceinline__ Epilogue(const Arguments& a, const Cut& cut, const Layout& layout,
                                      int row_warp, int column_warp, uint32_t shared)
      : WarpSums<Shape>(cut, layout, row_warp, column_warp, shared), a_(a) {}

  // Loads the slots, when they change, and the scales of a row tile long before they are needed.
  __device__ __forceinline__ void expect(const Steps& steps, bool new_slots) {
    if (column_warp_ > 0) return;
    if (kHoldsSlots && new_slots) take_slots(steps.slot_block());
    if (!scaled) return;
    const int64_t first = int64_t{expert_of(steps)} * cut_.unit_rows * 16 + group();
    FS_UNROLL
    for (int i = 0; i < 2 * kRowUnits; ++i) {
      const int unit = row_unit(steps) + i / 2;
      scales_[i] = unit < cut_.unit_rows ? a_.scales[first + unit * 16 + i % 2 * 8] : 0.0f;
    }
  }

  // `steps` is at a step of the row tile.
  __device__ __forceinline__ void leave(Tile& sums, const Steps& steps) {
    if (cut_.column_warps > 1) this->add_warps(sums);
    if (column_warp_ > 0) return;
    if (!kHoldsSlots) take_slots(steps.slot_block());
    if (cut_.gated) {
      store_gated(sums, row_unit(steps), expert_of(steps));
    } else {
      store_plain(sums, row_unit(steps), expert_of(steps));
    }
  }

 private:
  static __device__ __forceinline__ int group() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int pair() { return threadIdx.x % 4 * 2; }

  // The warp's first row of units of a row tile, in its expert.
  __device__ __forceinline__ int row_unit(const Steps& steps) const {
    return (steps.set() * cut_.row_warps + row_warp_) * kRowUnits;
  }
  // Registers are scarce: it is loaded when it is needed.
  __device__ __forceinline__ int expert_of(const Steps& steps) const {
    return a_.order.experts[steps.slot_block()];
  }

  __device__ __forceinline__ void take_slots(int slot_block) {
    const int* const slots = a_.order.slots + slot_block * Shape::kTokens;
    FS_UNROLL
    for (int n = 0; n < kTokenBlocks; ++n) {
      slots_[n] = slots[n * 8 + group()];
      FS_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int slot = slots[n * 8 + pair() + i];
        weights_[n][i] = a_.weights && slot < a_.slots ? a_.weights[slot] : 1.0f;
      }
    }
  }

  // A bias of the expert, the first of which is number `first`; 0 past the last row.
  __device__ __forceinline__ float bias(int64_t first, int row) const {
    return a_.bias && row < a_.rows ? to_float<Type>(a_.bias[first + row]) : 0.0f;
  }
  __device__ __forceinline__ float scale(int m, int i) const {
    return scaled ? scales_[2 * m + i] : 1.0f;
  }

  // Stores two tokens of a row as two rows of a token. `first`: the first of the 8 rows.
  __device__ __forceinline__ void store(int n, int first, float one, float other) const {
    const uint32_t two = transpose_8x8(from_floats<Type>(one, other));
    const int column = first + pair();
    if (slots_[n] < a_.slots && column < a_.y_stride) {
      uint16_t* const place = a_.y + (int64_t{slots_[n]} * a_.y_stride + column);
      store_global(reinterpret_cast<uint32_t*>(place), two);
    }
  }

  __device__ __forceinline__ void store_plain(const Tile& sums, int row_unit, int expert) const {
    FS_UNROLL
    for (int i = 0; i < 2 * kRowUnits; ++i) {
      const int m = i / 2, first = (row_unit + m) * 16 + i % 2 * 8, row = first + group();
      if (row_unit + m >= cut_.unit_rows) break;
      const float added = bias(int64_t{expert} * a_.rows, row);
      FS_UNROLL
      for (int n = 0; n < kTokenBlocks; ++n) {
        float y[2];
        FS_UNROLL
        for (int j = 0; j < 2; ++j) {
          y[j] = fmaf(sums[m][n][i % 2 * 2 + j], scale(m, i % 2), added) * weights_[n][j];
          if (row >= a_.rows) y[j] = 0;
        }
        store(n, first, y[0], y[1]);
      }
    }
  }

  __device__ __forceinline__ void store_gated(const Tile& sums, int row_unit, int expert) const {
    const int64_t biases = int64_t{2} * expert * a_.rows;
    FS_UNROLL
    for (int i = 0; i < kRowUnits; ++i) {
      const int m = i / 2 * 2, first = (row_unit + m) / 2 * 16 + i % 2 * 8, row = first + group();
      if (row_unit + m >= cut_.unit_rows) break;
      const float gate_bias = bias(biases, row), up_bias = bias(biases + a_.rows, row);
      FS_UNROLL
      for (int n = 0; n < kTokenBlocks; ++n) {
        float y[2];
        FS_UNROLL
        for (int j = 0; j < 2; ++j) {
          const int at = i % 2 * 2 + j;
          const float weight = weights_[n][j];
          const float gate = fmaf(sums[m][n][at] * scale(m, i % 2), weight, gate_bias);
          const float up = fmaf(sums[m + 1][n][at] * scale(m + 1, i % 2), weight, up_bias);
          y[j] = row < a_.rows ? activated(a_.activation, gate, up) : 0.0f;
        }
        store(n, first, y[0], y[1]);
      }
    }
  }

  using WarpSums<Shape>::cut_;
  using WarpSums<Shape>::row_warp_;
  using WarpSums<Shape>::column_warp_;

  const Arguments& a_;
  int slots_[kTokenBlocks];           // whose y this lane stores
  float weights_[kTokenBlocks][2];    // of the slots that this lane has sums of
  float scales_[2 * kRowUnits] = {};  // of the rows that this lane has sums of
};

}  // namespace flashsparse::experts
