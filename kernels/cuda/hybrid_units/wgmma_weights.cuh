// SPDX-License-Identifier: Apache-2.0
// A warp's units of 16 rows on their way from memory straight to registers, one step ahead of the
// product; and the kinds of those that the other warps of its warpgroup multiply at once.
#pragma once
#include "common/memory.cuh"
#include "cuda/hybrid_units/linear_arguments.h"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/mma_units/wgmma_x.cuh"
#include "cuda/sparse_24/wgmma_weights.cuh"
#include "formats/hybrid_units.h"

namespace flashsparse::hybrid_units {

// A lane's part of a unit: of a dense one the first half is the 2:4 unit.
template <class Values>
struct WgmmaUnit : sparse_24::WgmmaUnit<Values> {
  uint4 second[sparse_24::WgmmaUnit<Values>::kVectors];  // zeros in a 2:4 unit
  uint32_t dense;  // bit 2 m: whether unit m of the warpgroup is

  __device__ __forceinline__ bool is_dense(int place) const { return dense >> 2 * place & 1; }
  __device__ __forceinline__ bool any_dense() const { return dense != 0; }

  // Loads leave in second[0] what follows the first half, or all values: the second half, or
  // metadata. Which it is decides nothing before they have arrived, as that would wait for them.
  __device__ __forceinline__ void arrived(int place) {
    const uint4 behind = second[0], first = {kFirstHalf, kFirstHalf, kFirstHalf, kFirstHalf};
    this->metadata = is_dense(place) ? first : behind;
    FS_UNROLL
    for (uint4& vector : second) {
      if (!is_dense(place)) vector = make_uint4(0, 0, 0, 0);
    }
  }
};

template <class Operand, class Shape>
class WgmmaWeights {
 public:
  using Values = typename Operand::Values;
  using Unit = WgmmaUnit<Values>;
  using Units = Unit[1];
  static constexpr int kAtOnce = 1;
  // The first offsets have to arrive before a unit can be loaded.
  static constexpr bool kBeginsEarly = false;

  // `warp`: number of this warp in its block.
  __device__ __forceinline__ WgmmaWeights(const WgmmaArguments& a, const mma_units::WgmmaX<Shape>&,
                                          int warp)
      : a_(a),
        group_(mma_units::WgmmaTiles::place_down(a) * Shape::kUnits + (warp & ~3)),
        place_(warp & 3),
        next_(a) {
    // Rows that several tiles of tokens need are kept in the L2; others are read once.
    policy_ = next_.many_tokens() ? evict_normal_policy() : evict_first_policy();
    seek();
    look_ahead();
  }

  // Starts the loads that do not depend on x.
  __device__ __forceinline__ void begin() { load(following_); }
  __device__ __forceinline__ const Units& first() { return advance(0); }
  __device__ __forceinline__ const Units& unit(int) const { return units_; }
  __device__ __forceinline__ void before_products(int) { load(following_); }
  // The unit of the next step.
  __device__ __forceinline__ const Units& advance(int) {
    units_[0] = following_;
    units_[0].arrived(place_);
    return units_;
  }

 private:
  static constexpr UnitLayout kLayout = Values::kLayout;
  static constexpr int kVectors = Unit::kVectors;

  // Starts to load the next unit. Does nothing past the end.
  __device__ __forceinline__ void load(Unit& unit) {
    if (next_.ended()) return;
    const int lane = threadIdx.x % 32;
    const int32_t begin = __shfl_sync(~0u, ahead_, 2 * place_);
    const int32_t end = __shfl_down_sync(~0u, ahead_, 1);
    unit.dense = __ballot_sync(
        ~0u, lane < 8 && lane % 2 == 0 && hybrid_units::is_dense(kLayout, ahead_, end));
    const bool is_dense = unit.is_dense(place_);
    const uint32_t* const from = a_.units + int64_t{begin} * (kPieceBytes / 4);
    const auto* const vectors = reinterpret_cast<const uint4*>(from) + lane;
    FS_UNROLL
    for (int i = 0; i < kVectors; ++i) unit.values[i] = load_hinted(vectors + i * 32, policy_);
    FS_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      if (i == 0 || is_dense) unit.second[i] = load_hinted(vectors + (kVectors + i) * 32, policy_);
    }
    const uint32_t* const scales = from + vector_bytes(kLayout, is_dense) / 4;
    FS_UNROLL
    for (int i = 0; i < Unit::kScaleWords; i += 32)
      unit.scales[i / 32] = load_streaming(scales + i + lane % Unit::kScaleLanes);
    offsets_ += a_.depth;
    if (next_.advance()) seek();
    look_ahead();
  }

  // Loads the offsets of the next step's units, long before they are needed. Lanes 2 m and 2 m + 1
  // have those of the warpgroup's unit m and of the one after it.
  __device__ __forceinline__ void look_ahead() {
    if (!next_.ended()) ahead_ = load_readonly(offsets_);
  }

  __device__ __forceinline__ void seek() {
    const int lane = min(static_cast<int>(threadIdx.x % 32), 7);
    const int row = next_.unit_row(a_.down * Shape::kUnits, group_ + lane / 2);
    offsets_ = a_.offsets + int64_t{row} * a_.unit_cols + (next_.column() + lane % 2);
  }

  const WgmmaArguments& a_;
  const int group_, place_;  // the warpgroup's first unit of a tile; the warp's of these
  uint64_t policy_;
  mma_units::WgmmaTiles next_;
  const int32_t* offsets_;  // this lane's of the unit to load next
  int32_t ahead_ = 0;       // and its value
  Units units_;             // current
  Unit following_;          // requested
};

}  // namespace flashsparse::hybrid_units
