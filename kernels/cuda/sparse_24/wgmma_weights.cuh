// SPDX-License-Identifier: Apache-2.0
// A warp's units of 16 rows on their way from memory straight to registers, some steps ahead of the
// product.
#pragma once
#include "common/memory.cuh"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/mma_units/wgmma_x.cuh"
#include "cuda/sparse_24/values.cuh"
#include "cuda/sparse_24/wgmma_plan.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// A lane's part of a unit, in its stored layout. A group has 8 words of scales; a lane has one of
// every 32 words.
template <class Values>
struct WgmmaUnit {
  static constexpr UnitLayout kLayout = Values::kLayout;
  static constexpr int kVectors = kLayout.metadata() / kVectorBytes;
  static constexpr int kScaleWords = (kLayout.bytes() - kLayout.scales()) / 4;
  static constexpr int kScaleLanes = kScaleWords == 16 ? 16 : 32;  // with different words
  uint4 values[kVectors], metadata;
  uint32_t scales[kScaleWords > 32 ? 2 : 1];

  // Of two steps.
  __device__ __forceinline__ uint32_t metadata_word(int i) const {
    return i == 0 ? metadata.x : i == 1 ? metadata.y : i == 2 ? metadata.z : metadata.w;
  }
};

template <class Operand, class Shape>
class WgmmaWeights {
 public:
  using Unit = WgmmaUnit<typename Operand::Values>;
  using Units = Unit[Shape::kHigh];  // of as many rows of units
  // Units of a row that are loaded at once. Registers cannot be indexed, so there is code for each
  // `index`.
  static constexpr int kAtOnce =
      wgmma_units_at_once(Shape::kInfo, Operand::Values::kLayout, Operand::kXBytes);
  static constexpr bool kBeginsEarly = begins_early(Shape::kInfo, Operand::Values::kLayout);

  // `warp`: number of this warp in its block.
  __device__ __forceinline__ WgmmaWeights(const typename Shape::Arguments& a,
                                          const mma_units::WgmmaX<Shape>&, int warp)
      : a_(a),
        unit_(mma_units::WgmmaTiles::place_down(a) * Shape::kUnits + warp * Shape::kHigh),
        next_(a) {
    // Rows that several tiles of tokens need are kept in the L2; others are read once.
    policy_ = next_.many_tokens() ? evict_normal_policy() : evict_first_policy();
    seek();
  }

  // Starts the loads that do not depend on x.
  __device__ __forceinline__ void begin() { load(units_); }
  // The unit of the first step, which is number 0; and unit number `index`.
  __device__ __forceinline__ const Units& first() { return units_[0]; }
  __device__ __forceinline__ const Units& unit(int index) const { return units_[index]; }
  // Before the first of the loaded units is multiplied, as many more are requested.
  __device__ __forceinline__ void before_products(int index) {
    if (index == 0) load(following_);
  }
  // The unit of the next step.
  __device__ __forceinline__ const Units& advance(int index) {
    if (index + 1 == kAtOnce) {
      FS_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        FS_UNROLL
        for (int h = 0; h < Shape::kHigh; ++h) units_[i][h] = following_[i][h];
      }
    }
    return units_[(index + 1) % kAtOnce];
  }

 private:
  static constexpr UnitLayout kLayout = Operand::Values::kLayout;

  __device__ __forceinline__ void load(Units (&units)[kAtOnce]) {
    FS_UNROLL
    for (int i = 0; i < kAtOnce; ++i) load(units[i]);
  }

  // Starts to load the next unit of each row. Does nothing past the end.
  __device__ __forceinline__ void load(Units& units) {
    if (next_.ended()) return;
    load(units[0], from_);
    if constexpr (Shape::kHigh == 2) load(units[1], from_ + below_);
    from_ += a_.depth * kLayout.words();
    if (next_.advance()) seek();
  }
  __device__ __forceinline__ void load(Unit& unit, const uint32_t* from) const {
    const int lane = threadIdx.x % 32;
    const auto* const vectors = reinterpret_cast<const uint4*>(from) + lane;
    FS_UNROLL
    for (int i = 0; i < Unit::kVectors; ++i)
      unit.values[i] = load_hinted(vectors + i * 32, policy_);
    unit.metadata = load_hinted(vectors + Unit::kVectors * 32, policy_);
    FS_UNROLL
    for (int i = 0; i < Unit::kScaleWords; i += 32) {
      unit.scales[i / 32] =
          load_streaming(from + kLayout.scales() / 4 + i + lane % Unit::kScaleLanes);
    }
  }

  __device__ __forceinline__ void seek() {
    static_assert(Shape::kHigh <= 2, "below_ is of one row");
    const int tile_units = a_.down * Shape::kUnits, row = next_.unit_row(tile_units, unit_);
    const int64_t words = int64_t{a_.unit_cols} * kLayout.words();
    from_ = a_.units + row * words + next_.column() * kLayout.words();
    below_ = next_.unit_row(tile_units, unit_ + 1) > row ? words : 0;
  }

  const typename Shape::Arguments& a_;
  const int unit_;
  uint64_t policy_;
  typename Shape::Tiles next_;
  const uint32_t* from_;  // to load next
  int64_t below_;         // words from there to the next row of units; 0 after the last one
  Units units_[kAtOnce], following_[kAtOnce];  // current; requested
};

}  // namespace flashsparse::sparse_24
