// SPDX-License-Identifier: Apache-2.0
// The reduction of the accumulators of the warps along the columns of a block, in shared memory. As
// in mma_units/sums.cuh: shared with it, it changed the machine code of the decode kernels, which
// are timed as they are.
#pragma once
#include "common/memory.cuh"
#include "common/warp.cuh"
#include "cuda/experts/arguments.h"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/mma_units/sums_tile.cuh"

namespace flashsparse::experts {

template <class Shape>
class WarpSums {
 public:
  static constexpr int kRowUnits = Shape::kRowUnits, kTokenBlocks = Shape::kTokens / 8;
  // Warps whose accumulators are loaded at once: few where registers are scarce.
  static constexpr int kWarpsAtOnce = kRowUnits * kTokenBlocks <= 2 ? 4 : 1;

 protected:
  // `layout`: mma_units::Shared.
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
  __device__ __forceinline__ void add_warps(mma_units::SumsTile<Shape>& sums) {
    FS_UNROLL
    for (int n = 0; n < kTokenBlocks; ++n) {
      const uint32_t buffer = place_ + turn_ * (kRowUnits * mma_units::kSumsBytes);
      if (column_warp_ > 0) {
        FS_UNROLL
        for (int m = 0; m < kRowUnits; ++m) {
          store_shared(buffer + column_warp_ * warp_bytes_ + m * mma_units::kSumsBytes,
                       as_vector(sums[m][n]));
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
            add(sums[m][n],
                load_shared<float4>(buffer + warp * warp_bytes_ + m * mma_units::kSumsBytes));
          }
        }
      }
      turn_ ^= 1;
    }
  }

  const Cut& cut_;
  const int row_warp_, column_warp_;

 private:
  static __device__ __forceinline__ float4 as_vector(const float (&sums)[4]) {
    return make_float4(sums[0], sums[1], sums[2], sums[3]);
  }
  static __device__ __forceinline__ void add(float (&sums)[4], const float4& more) {
    sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w;
  }

  const uint32_t warp_bytes_, place_;
  uint32_t turn_ = 0;
};

}  // namespace flashsparse::experts
