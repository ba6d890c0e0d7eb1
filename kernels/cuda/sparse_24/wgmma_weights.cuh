// SPDX-License-Identifier: Apache-2.0
// A warp's units of 16 rows on their way from memory straight into registers, a step ahead
// of the product.
#pragma once
#include "common/memory.cuh"
#include "cuda/sparse_24/wgmma_tiles.cuh"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// What a lane has of a unit.
struct WgmmaUnit {
  uint32_t values[kSteps][4], metadata[kSteps / 2];
};

class WgmmaWeights {
 public:
  // `unit` is the warp's in the rows of a tile, of which the cluster has `tile_units`.
  __device__ __forceinline__ WgmmaWeights(const WgmmaArguments& a, const WgmmaTiles& tiles,
                                          int unit, int tile_units)
      : a_(a), unit_(unit), tile_units_(tile_units), next_(tiles) {
    // Rows that several tiles of tokens need stay in the L2; else they are read once.
    policy_ = tiles.many_tokens() ? kept_policy() : once_policy();
    seek();
  }

  // To the step after the one that has been loaded.
  __device__ __forceinline__ void advance() {
    from_ += a_.depth * (kUnitBytes / 16);
    if (next_.advance()) seek();
  }

  // Starts to load the step's unit; nothing beyond the last step.
  __device__ __forceinline__ void load(WgmmaUnit& unit) const {
    if (next_.ended()) return;
    FS_UNROLL
    for (int i = 0; i < kSteps; ++i) load_vector(unit.values[i], i);
    load_vector(unit.metadata, kSteps);
  }

 private:
  __device__ __forceinline__ void load_vector(uint32_t (&words)[4], int number) const {
    const uint4 v = load_hinted(from_ + number * 32, policy_);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  }

  // Rows of units past the last one are the last one again: they are multiplied, and not stored.
  __device__ __forceinline__ void seek() {
    const auto last = static_cast<int>(unit_rows(a_.rows)) - 1;
    const int64_t row = min(next_.row_tile(next_.tile()) * tile_units_ + unit_, last);
    from_ = reinterpret_cast<const uint4*>(a_.units) +
            (row * unit_cols(a_.cols) + next_.column()) * (kUnitBytes / 16) + threadIdx.x % 32;
  }

  const WgmmaArguments& a_;
  const int unit_, tile_units_;
  uint64_t policy_;
  WgmmaTiles next_;
  const uint4* from_;  // this lane's bytes of the unit
};

}  // namespace flashsparse::sparse_24
