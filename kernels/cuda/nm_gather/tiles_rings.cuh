// SPDX-License-Identifier: Apache-2.0
// The two rings of a block in shared memory: stages of x of a section each, and stages of weights
// of a pair of steps each. One warp fills each ring; all compute warps read both.
#pragma once
#include "common/bulk_copy.cuh"
#include "cuda/nm_gather/tiles_shape.h"
#include "cuda/nm_gather/tiles_walk.cuh"

namespace flashsparse::nm_gather {

// A position in a ring, and the parity of its phase.
class RingPlace {
 public:
  // `barriers`: the full barriers of all stages, then the empty ones.
  __device__ __forceinline__ RingPlace(uint32_t barriers, uint32_t memory, uint32_t stage_bytes,
                                       int stages)
      : barriers_(barriers), memory_(memory), stage_bytes_(stage_bytes), stages_(stages) {}

  // Called by one thread before all else; a barrier must follow.
  __device__ __forceinline__ void init(int readers) const {
    FS_NO_UNROLL
    for (int i = 0; i < stages_; ++i) {
      mbarrier_init(barriers_ + i * kMbarrierBytes, kRunArrivals);
      mbarrier_init(barriers_ + (stages_ + i) * kMbarrierBytes, readers);
    }
  }

  __device__ __forceinline__ uint32_t full() const { return barriers_ + stage_ * kMbarrierBytes; }
  __device__ __forceinline__ uint32_t memory() const { return memory_ + stage_ * stage_bytes_; }
  __device__ __forceinline__ void wait_full() const { mbarrier_wait(full(), parity_); }
  // Returns at once in the first phase.
  __device__ __forceinline__ void wait_empty() const { mbarrier_wait(empty(), parity_ ^ 1); }
  // The warp has read the stage.
  __device__ __forceinline__ void release() const {
    finish_reads();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty());
  }
  __device__ __forceinline__ void advance() {
    if (++stage_ < stages_) return;
    stage_ = 0;
    parity_ ^= 1;
  }

 private:
  __device__ __forceinline__ uint32_t empty() const {
    return barriers_ + (stages_ + stage_) * kMbarrierBytes;
  }

  const uint32_t barriers_, memory_, stage_bytes_;
  const int stages_;
  int stage_ = 0;
  uint32_t parity_ = 0;  // parity of the phase
};

// Fills the ring of x with sections [begin, end), for the tokens of each tile.
template <class Shape>
__device__ __forceinline__ void fill_x(const Weight& weight, const TileArguments& a, RingPlace ring,
                                       TileWalk walk, int begin, int end) {
  const int tiles = (a.tokens + kTileTokens - 1) / kTileTokens;
  griddepcontrol_wait();  // copies of weights do not wait for it
  for (; !walk.ended(); walk.advance()) {
    const int first = walk.token_block * Shape::kTokenTiles;
    FS_NO_UNROLL
    for (int section = begin; section < end; ++section, ring.advance()) {
      const int from = block_begin(section * weight.section_columns);
      const int to = block_begin((section + 1) * weight.section_columns + kBlock - 1);
      const uint32_t bytes = (to - from) * uint32_t{kTileTokens * 2};
      ring.wait_empty();
      expect_runs(ring.full(), bytes * Shape::kTokenTiles);
      copy_runs(Shape::kTokenTiles, bytes, ring.full(), [&](int i) {
        const int64_t tile = min(first + i, tiles - 1);  // past the last one any will do
        return Run{ring.memory() + i * a.x_tile_bytes,
                   a.x_tiles + (tile * a.x_columns + from) * kTileTokens};
      });
      arrive_after_runs(ring.full());
    }
  }
}

// Fills the ring of weights with pairs [begin, end), for the rows of each tile: the values of its
// units, then an index for each row_warp. Past the last unit, that one is copied again.
template <class Shape>
__device__ __forceinline__ void fill_weights(const Weight& weight, const TileArguments& a,
                                             RingPlace ring, TileWalk walk, int begin, int end) {
  constexpr int kIndexVectors = kPair / 16, kIndexWords = kPair / 4;
  const int lane = threadIdx.x % 32, units = a.row_warps * Shape::kUnits, last = a.units - 1;
  const bool indexes = lane < a.row_warps * kIndexVectors;
  for (; !walk.ended(); walk.advance()) {
    const int first = walk.row_block * units;
    const int own = min(first + lane / kIndexVectors * Shape::kUnits, last);
    const uint32_t* const index = weight.index +
                                  int64_t{own / weight.group_units} * weight.pairs * kIndexWords +
                                  lane % kIndexVectors * 4;
    FS_NO_UNROLL
    for (int pair = begin; pair < end; ++pair, ring.advance()) {
      ring.wait_empty();
      expect_runs(ring.full(), units * Shape::kUnitBytes);
      copy_runs(units, Shape::kUnitBytes, ring.full(), [&](int i) {
        const int64_t unit = min(first + i, last);
        return Run{ring.memory() + i * Shape::kUnitBytes,
                   weight.values + (unit * weight.pairs + pair) * (Shape::kUnitBytes / 16)};
      });
      if (indexes) {
        copy_async<16>(ring.memory() + units * Shape::kUnitBytes + lane * 16,
                       index + int64_t{pair} * kIndexWords, true);
      }
      arrive_after_runs(ring.full());
    }
  }
}

}  // namespace flashsparse::nm_gather
