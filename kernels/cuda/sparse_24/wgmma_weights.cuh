// SPDX-License-Identifier: Apache-2.0
// A warp's units of 16 rows on their way from memory straight into registers, some steps ahead of
// the product.
#pragma once
#include "common/memory.cuh"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/sparse_24/values.cuh"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// What a lane has of a unit, as it lies. Of scales, which 16 rows of a group have as 8 words, it
// has one word of each 32.
template <class Values>
struct WgmmaUnit {
  static constexpr UnitLayout kLayout = Values::kLayout;
  static constexpr int kVectors = kLayout.metadata() / kVectorBytes;
  static constexpr int kScaleWords = (kLayout.bytes() - kLayout.scales()) / 4;
  static constexpr int kScaleLanes = kScaleWords == 16 ? 16 : 32;  // that have different words
  uint4 values[kVectors], metadata;
  uint32_t scales[kScaleWords > 32 ? 2 : 1];
};

template <class Values>
class WgmmaWeights {
 public:
  using Unit = WgmmaUnit<Values>;

  // `unit` is the warp's in the rows of a tile, of which the cluster has `tile_units`.
  __device__ __forceinline__ WgmmaWeights(const mma_units::WgmmaArguments& a,
                                          const mma_units::WgmmaTiles& tiles, int unit,
                                          int tile_units)
      : a_(a), unit_(unit), tile_units_(tile_units), next_(tiles) {
    // Rows that several tiles of tokens need stay in the L2; else they are read once.
    policy_ = tiles.many_tokens() ? kept_policy() : once_policy();
    seek();
  }

  // Starts to load the unit of the step after the last one that was loaded; nothing beyond the end.
  __device__ __forceinline__ void load(Unit& unit) {
    if (next_.ended()) return;
    const int lane = threadIdx.x % 32;
    const auto* const vectors = reinterpret_cast<const uint4*>(from_) + lane;
    FS_UNROLL
    for (int i = 0; i < Unit::kVectors; ++i)
      unit.values[i] = load_hinted(vectors + i * 32, policy_);
    unit.metadata = load_hinted(vectors + Unit::kVectors * 32, policy_);
    FS_UNROLL
    for (int i = 0; i < Unit::kScaleWords; i += 32) {
      unit.scales[i / 32] =
          load_streaming(from_ + kLayout.scales() / 4 + i + lane % Unit::kScaleLanes);
    }
    from_ += a_.depth * kLayout.words();
    if (next_.advance()) seek();
  }

 private:
  static constexpr UnitLayout kLayout = Values::kLayout;

  // Rows of units past the last one are the last one again: they are multiplied, and not stored.
  __device__ __forceinline__ void seek() {
    const auto last = static_cast<int>(unit_rows(a_.rows)) - 1;
    const int64_t row = min(next_.row_tile(next_.tile()) * tile_units_ + unit_, last);
    from_ = a_.units + (row * unit_cols(a_.cols) + next_.column()) * kLayout.words();
  }

  const mma_units::WgmmaArguments& a_;
  const int unit_, tile_units_;
  uint64_t policy_;
  mma_units::WgmmaTiles next_;
  const uint32_t* from_;  // the unit to be loaded next
};

}  // namespace flashsparse::sparse_24
