// SPDX-License-Identifier: Apache-2.0
// The reduction of the accumulators of the warps along the columns of a block, in shared memory.
#pragma once
#include "common/memory.cuh"
#include "common/warp.cuh"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/mma_units/moved_sums.cuh"
#include "cuda/mma_units/sums_tile.cuh"

namespace flashsparse::mma_units {

// The base of epilogues. `Cut` has column_warps, the warps along the columns.
template <class Shape, class Sum, class Cut>
class WarpSums {
 public:
  static constexpr int kRowUnits = Shape::kRowUnits, kTokenBlocks = Shape::kTokens / 8;
  // Warps whose accumulators are loaded at once: few where registers are scarce.
  static constexpr int kWarpsAtOnce = kRowUnits * kTokenBlocks <= 2 ? 4 : 1;

 protected:
  // `layout`: the format's Shared.
  template <class Layout>
  __device__ __forceinline__ WarpSums(const Cut& cut, const Layout& layout, int row_warp,
                                      int column_warp, uint32_t shared)
      : cut_(cut),
        row_warp_(row_warp),
        column_warp_(column_warp),
        warp_bytes_(layout.sums_warp),
        place_(shared + layout.sums + row_warp * cut.column_warps * layout.sums_warp +
               threadIdx.x % 32 * uint32_t{sizeof(float4)}) {}

  // The first warp along the columns adds up those of all, 8 tokens at a time, always in the same
  // order.
  __device__ __forceinline__ void add_warps(SumsTile<Shape, Sum>& sums) {
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

  const Cut& cut_;
  const int row_warp_, column_warp_;

 private:
  static __device__ __forceinline__ void add(Sum (&sums)[4], const float4& more) {
    sums[0] += sum_of_bits<Sum>(more.x), sums[1] += sum_of_bits<Sum>(more.y);
    sums[2] += sum_of_bits<Sum>(more.z), sums[3] += sum_of_bits<Sum>(more.w);
  }

  const uint32_t warp_bytes_, place_;
  uint32_t turn_ = 0;
};

}  // namespace flashsparse::mma_units
