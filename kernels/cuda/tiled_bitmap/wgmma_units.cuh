// SPDX-License-Identifier: Apache-2.0
// A warp's units of 16 rows on their way from memory: a ring of lines of its own in shared memory,
// which bulk copies fill some steps ahead of the product.
//
// Units have as many lines as their fullest column needs: the ring holds as many units as there is
// room for, four at most, and always one. Nobody but the warp uses the ring, so that it knows by
// itself what is free.
#pragma once
#include "common/bulk_copy.cuh"
#include "common/memory.cuh"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/tiled_bitmap/lane_items.cuh"
#include "cuda/tiled_bitmap/wgmma_arguments.h"
#include "cuda/tiled_bitmap/wgmma_plan.h"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

class WgmmaUnits {
 public:
  // `unit` is the warp's in the rows of a tile, of which the cluster has `tile_units`; `ring` and
  // `barriers` are the warp's own.
  __device__ __forceinline__ WgmmaUnits(const WgmmaArguments& a, const mma_units::WgmmaTiles& tiles,
                                        int unit, int tile_units, uint32_t ring, uint32_t barriers)
      : a_(a),
        unit_(unit),
        tile_units_(tile_units),
        ring_(ring),
        barriers_(barriers),
        next_(tiles) {
    seek();
  }

  static __device__ __forceinline__ void init(uint32_t barriers) {
    FS_UNROLL
    for (int i = 0; i < kUnitsAhead; ++i) mbarrier_init(barriers + i * kMbarrierBytes, 1);
  }

  // Starts to copy the next unit, if there is one and room for it. Its offsets were loaded when the
  // one before was copied: call it now and then.
  __device__ __forceinline__ void fill() {
    if (next_.ended() || count_ == kUnitsAhead) return;
    const int lines = end_ - begin_, place = find_room(lines + kLinesReadBeyond);
    if (place < 0) return;
    if (threadIdx.x % 32 == 0) {
      const uint32_t barrier = this->barrier(taken_ + count_), bytes = lines * kLineBytes;
      detail::mbarrier_arrive_expecting(barrier, bytes);
      detail::copy_bulk(ring_ + place * kLineBytes, a_.units + int64_t{begin_} * kLineWords, bytes,
                        barrier);
    }
    FS_UNROLL
    for (int i = 0; i < kUnitsAhead; ++i) {
      if (i == count_) places_[i] = place;
    }
    ++count_;
    free_ = place + lines + kLinesReadBeyond;
    from_ += a_.depth;
    if (next_.advance()) {
      seek();
    } else {
      look();
    }
  }

  __device__ __forceinline__ bool any() const { return count_ > 0; }

  // The shared address of the oldest unit, when it is there.
  __device__ __forceinline__ uint32_t wait() const {
    mbarrier_wait(barrier(taken_), taken_ / kUnitsAhead % 2);
    return ring_ + places_[0] * kLineBytes;
  }

  // The warp has read all that it needs of the oldest unit.
  __device__ __forceinline__ void release() {
    finish_reads();
    __syncwarp();
    FS_UNROLL
    for (int i = 0; i + 1 < kUnitsAhead; ++i) places_[i] = places_[i + 1];
    --count_;
    ++taken_;
  }

 private:
  __device__ __forceinline__ uint32_t barrier(int number) const {
    return barriers_ + number % kUnitsAhead * kMbarrierBytes;
  }

  // The line at which so many are free, or -1. A unit is in one piece. Where no other one like it
  // would fit behind, it goes to the ring's end: what is free is before it, for the next one.
  __device__ __forceinline__ int find_room(int lines) const {
    if (count_ == 0) return 0;
    const int oldest = places_[0], left = a_.ring_lines - free_ - lines;
    if (free_ <= oldest) return free_ + lines <= oldest ? free_ : -1;
    if (left >= 0) return left >= lines ? free_ : a_.ring_lines - lines;
    return lines <= oldest ? 0 : -1;
  }

  // Rows of units past the last one are the last one again: they are multiplied, and not stored.
  __device__ __forceinline__ void seek() {
    if (next_.ended()) return;
    const auto last = static_cast<int>(unit_rows(a_.rows)) - 1;
    const int row = min(next_.row_tile(next_.tile()) * tile_units_ + unit_, last);
    from_ = a_.offsets + (int64_t{row} * unit_cols(a_.cols) + next_.column());
    look();
  }

  __device__ __forceinline__ void look() {
    if (next_.ended()) return;
    begin_ = load_readonly(from_);
    end_ = load_readonly(from_ + 1);
  }

  const WgmmaArguments& a_;
  const int unit_, tile_units_;
  const uint32_t ring_, barriers_;
  mma_units::WgmmaTiles next_;  // of the unit to be copied next
  const int32_t* from_;         // its offset
  int begin_, end_;             // the lines that it has
  int count_ = 0, taken_ = 0;   // units in the ring, and those that were there before
  int places_[kUnitsAhead] = {};
  int free_ = 0;  // the line behind the latest unit
};

}  // namespace flashsparse::tiled_bitmap
