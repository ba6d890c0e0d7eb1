// SPDX-License-Identifier: Apache-2.0
// A warp's own ring of units in shared memory, which bulk copies fill some steps ahead of the
// product.
//
// A unit has as many lines as its fullest column needs, so the ring holds as many units as fit: at
// least one, at most kUnitsAhead. Only this warp uses the ring, so it knows what is free without
// synchronization.
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
  // `unit`: the warp's row of units in a tile, which has `tile_units`. `ring` and `barriers` are
  // the warp's own.
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

  // Starts to copy the next unit, if there is one and it fits. Its offsets were requested when the
  // previous unit was copied, so leave time between calls.
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

  // Waits for the oldest unit, and returns its shared address.
  __device__ __forceinline__ uint32_t wait() const {
    mbarrier_wait(barrier(taken_), taken_ / kUnitsAhead % 2);
    return ring_ + oldest() * kLineBytes;
  }

  // The warp is done with the oldest unit.
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

  // Returns the first of `lines` adjacent free lines, or -1. If a second unit of this size would
  // not fit after it, it goes to the end of the ring, so that the free lines before it stay in one
  // piece.
  __device__ __forceinline__ int find_room(int lines) const {
    if (count_ == 0) return 0;
    const int oldest = this->oldest(), left = a_.ring_lines - free_ - lines;
    if (free_ <= oldest) return free_ + lines <= oldest ? free_ : -1;
    if (left >= 0) return left >= lines ? free_ : a_.ring_lines - lines;
    return lines <= oldest ? 0 : -1;
  }

  // Rows of units past the end are clamped to the last one: they are multiplied, but not stored.
  __device__ __forceinline__ void seek() {
    if (next_.ended()) return;
    const int row = min(next_.row_tile(next_.tile()) * tile_units_ + unit_, a_.unit_rows - 1);
    from_ = a_.offsets + (int64_t{row} * a_.unit_cols + next_.column());
    look();
  }

  // Each lane loads one of the two offsets. A value that is uniform across the warp would be moved
  // to a uniform register as soon as it is loaded, and the warp would wait for it here.
  __device__ __forceinline__ void look() {
    if (!next_.ended()) offset_ = load_readonly(from_ + threadIdx.x % 2);
  }

  const WgmmaArguments& a_;
  const int unit_, tile_units_;
  const uint32_t ring_, barriers_;
  mma_units::WgmmaTiles next_;      // of the unit to copy next
  const int32_t* from_;             // its entry of unit_offsets
  int offset_;                      // the unit's first line in even lanes; its end in odd ones
  uint32_t count_ = 0, taken_ = 0;  // units in the ring; units taken from it before
  int place_ = 0;  // lane i: first line of the unit whose number is i modulo kUnitsAhead
  int free_ = 0;   // line after the latest unit
};

}  // namespace flashsparse::tiled_bitmap
