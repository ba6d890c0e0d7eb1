// SPDX-License-Identifier: Apache-2.0
// The warpgroup that packs: it copies the rows of x_tiles that kept columns name to the ring. Each
// warp has every fourth pair for its own, and eight lanes copy a row of 128 bytes.
//
// What a thread has copied is seen by wgmma after a fence, and the fence waits for everything that
// the thread has on its way. So a warp finishes a pair before it begins another, and those of the
// four warps are on their way at the same time.
#pragma once
#include "common/memory.cuh"
#include "cuda/nm_gather/packed_ring.cuh"

namespace flashsparse::nm_gather {

template <class Shape>
class PackX {
 public:
  __device__ __forceinline__ PackX(const Weight& weight, const PackedArguments& a, uint32_t shared)
      : weight_(weight),
        a_(a),
        lane_(threadIdx.x % 32),
        own_(lane_ / 8 * kSlabRowBytes + lane_ % 8 * 16),
        pair_(threadIdx.x / 32 % kPackingWarps),
        place_(shared) {
    place_.move(pair_);
  }

  __device__ __forceinline__ void run() {
    const int tiles = a_.row_tiles * a_.token_tiles;
    wait_for_last_kernel();  // which makes x_tiles
    FS_NO_UNROLL
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
      pack(PackedTile(a_, number));
    }
  }

 private:
  static constexpr int kFours = kPair / 4;  // of a pair's entries: words of the index

  // The warp's pairs of a tile. Where pairs are no multiple of the warps, the next tile begins with
  // another warp: the ring goes on.
  __device__ __forceinline__ void pack(const PackedTile& tile) {
    const char* x[Shape::kSlabs];
    FS_UNROLL
    for (int slab = 0; slab < Shape::kSlabs; ++slab) {
      // Beyond the last tile of x it is read again: nothing is written of the tokens there.
      const int x_tile = min(tile.token * Shape::kSlabs + slab, a_.x_tile_count - 1);
      x[slab] = reinterpret_cast<const char*>(a_.x_tiles) + x_tile * a_.x_tile_bytes;
    }
    const int unit = min(tile.row * (Shape::kRows / 32), a_.units - 1);
    const uint32_t* const words = weight_.index +
                                  int64_t{unit / weight_.group_units} * weight_.pairs * kFours +
                                  lane_ % kFours;
    uint32_t next = pair_ < weight_.pairs ? load_readonly(words + pair_ * kFours) : 0;
    FS_NO_UNROLL
    for (; pair_ < weight_.pairs; pair_ += kPackingWarps) {
      const uint32_t word = next;
      if (pair_ + kPackingWarps < weight_.pairs) {
        next = load_readonly(words + (pair_ + kPackingWarps) * kFours);
      }
      uint32_t from[kFours];
      find_rows(from, word);  // while the stage may still be read
      mbarrier_wait(place_.empty(), place_.parity() ^ 1);
      copy(x, from, place_.begin() + own_);
      copy_async_commit();
      copy_async_wait<0>();
      fence_for_wgmma();
      __syncwarp();
      if (lane_ == 0) mbarrier_arrive(place_.full());
      place_.move(kPackingWarps);
    }
    pair_ -= weight_.pairs;
  }

  // The pair's rows: of each four the lane copies its chunk of one. Where in a tile of x it is.
  __device__ __forceinline__ void find_rows(uint32_t (&from)[kFours], uint32_t word) const {
    FS_UNROLL
    for (int four = 0; four < kFours; ++four) {
      const int panel = (pair_ * 2 + four * 4 / kStep) / weight_.panel_steps;
      const uint32_t bytes = __shfl_sync(~0u, word, four);
      const uint32_t row =
          block_begin(panel * weight_.panel_columns) + (bytes >> lane_ / 8 * 8 & 0xff);
      const uint32_t entry = four * 4 + lane_ / 8;  // its row in the ring is swizzled, too
      from[four] = row * kSlabRowBytes + ((row ^ lane_ ^ entry) % 8) * 16;
    }
  }

  __device__ __forceinline__ void copy(const char* const (&x)[Shape::kSlabs],
                                       const uint32_t (&from)[kFours], uint32_t to) const {
    FS_UNROLL
    for (int four = 0; four < kFours; ++four) {
      FS_UNROLL
      for (int slab = 0; slab < Shape::kSlabs; ++slab) {
        copy_async<16>(to + slab * Shape::kSlabBytes + four * 4 * kSlabRowBytes,
                       x[slab] + from[four], true);
      }
    }
  }

  const Weight& weight_;
  const PackedArguments& a_;
  const int lane_;
  const uint32_t own_;  // where in four rows of a slab the lane's chunk lies
  int pair_;            // of the tile, the warp's next
  RingPlace<Shape> place_;
};

}  // namespace flashsparse::nm_gather
