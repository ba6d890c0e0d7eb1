// SPDX-License-Identifier: Apache-2.0
// The producer warpgroup: it copies the rows of x_tiles that kept columns select to the ring. Each
// warp has every fourth pair, and eight lanes copy a row of 128 bytes.
//
// wgmma sees what a thread has copied after a proxy fence, and the fence waits for all copies that
// the thread has in flight. So a warp finishes a pair before it begins another, and the pairs of
// the four warps overlap.
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
    griddepcontrol_wait();  // which writes x_tiles
    FS_NO_UNROLL
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
      pack(PackedTile(a_, number));
    }
  }

 private:
  static constexpr int kFours = kPair / 4;  // words of the index for a pair, of four entries each

  // Packs the warp's pairs of a tile. If the number of pairs is no multiple of the warps, the next
  // tile begins with another warp, since the ring goes on.
  __device__ __forceinline__ void pack(const PackedTile& tile) {
    const char* x[Shape::kSlabs];
    FS_UNROLL
    for (int slab = 0; slab < Shape::kSlabs; ++slab) {
      // Past the last tile of x, that one is read again: y is not written for its tokens.
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
      find_rows(from, word);  // the stage may still be read meanwhile
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

  // Offsets in a tile of x of what the lane copies: its chunk of one row out of each four of the
  // pair.
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
  const uint32_t own_;  // offset of the lane's chunk in four rows of a slab
  int pair_;            // the warp's next, in the tile
  RingPlace<Shape> place_;
};

}  // namespace flashsparse::nm_gather
