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
    const int begin = __shfl_sync(~0u, offset_, 0);
    const int lines = __shfl_sync(~0u, offset_, 1) - begin;
    const int place = find_room(lines + kLinesReadBeyond);
    if (place < 0) return;
    if (threadIdx.x % 32 == 0) {
      const uint32_t barrier = this->barrier(taken_ + count_), bytes = lines * kLineBytes;
      detail::mbarrier_arrive_expecting(barrier, bytes);
      detail::copy_bulk(ring_ + place * kLineBytes, a_.units + int64_t{begin} * kLineWords, bytes,
                        barrier);
    }
    if (threadIdx.x % 32 == (taken_ + count_) % kUnitsAhead) place_ = place;
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
    return ring_ + oldest() * kLineBytes;
  }

  // The warp has read all that it needs of the oldest unit.
  __device__ __forceinline__ void release() {
    finish_reads();
    __syncwarp();
    --count_;
    ++taken_;
  }

 private:
  __device__ __forceinline__ uint32_t barrier(uint32_t number) const {
    return barriers_ + number % kUnitsAhead * kMbarrierBytes;
  }

  __device__ __forceinline__ int oldest() const {
    return __shfl_sync(~0u, place_, taken_ % kUnitsAhead);
  }

  // The line at which so many are free, or -1. A unit is in one piece. Where no other one like it
  // would fit behind, it goes to the ring's end: what is free is before it, for the next one.
  __device__ __forceinline__ int find_room(int lines) const {
    if (count_ == 0) return 0;
    const int oldest = this->oldest(), left = a_.ring_lines - free_ - lines;
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

  // Each lane loads one of the two: of a number that all lanes have alike the compiler makes a
  // uniform register as soon as it is loaded, and the warp would wait for it here.
  __device__ __forceinline__ void look() {
    if (!next_.ended()) offset_ = load_readonly(from_ + threadIdx.x % 2);
  }

  const WgmmaArguments& a_;
  const int unit_, tile_units_;
  const uint32_t ring_, barriers_;
  mma_units::WgmmaTiles next_;      // of the unit to be copied next
  const int32_t* from_;             // its offset
  int offset_;                      // in even lanes; where its lines end in odd ones
  uint32_t count_ = 0, taken_ = 0;  // units in the ring, and those that were there before
  int place_ = 0;                   // in lane i: of the unit whose number is i modulo kUnitsAhead
  int free_ = 0;                    // the line behind the latest unit
};

}  // namespace flashsparse::tiled_bitmap
