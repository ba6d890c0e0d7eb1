// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from a packed weight: load as sparse, compute as dense (Flash-LLM, Xia et al.,
// VLDB 2024, section 4). docs/kernels.md explains it with pictures; in short:
//
// A team of warps owns a dense 128 x 64 tile in shared memory and takes tile after tile of the
// weight through it:
//   scatter     the tile source stores the values that it holds in registers to the tile
//   prefetch    loads of the source for the team's next tile start, to registers, and copies of x
//               for that tile, to shared memory
//   multiply    tensor cores, from the tile and from x in shared memory
//   clear       the source makes the tile ready for the next one
// The paper has a tile for each block. With a tile for each team no barrier is wider than the team
// while it works. Which tiles a team takes, and how partial sums are added up, is in stream_k.cuh.
//
// A tile source is what a packed format provides, in the tile_source.cuh of its folder:
//   Shape                       the linear::Shape that it is made for
//   Weight                      pointers to its tensors, an argument of the kernel
//   kSharedBytes                shared memory of a block that it needs besides the tiles
//   Source(weight, team, shared)
//   begin(first, count)         the block's range of tiles; a block barrier follows
//   prefetch(tile)              starts the loads of a tile, numbered from the range's first
//   prefetch_none()             called after the team's last tile
//   has_next()                  which of these two was called last
//   scatter() -> Scattered      completes the tile whose loads were started
//   clear(scattered)            after the product: clears the tile, and ends with a team barrier
//   clear()                     the same, whatever the tile holds
// The tile holds 128 rows of 64 16-bit values. 16-byte chunk c of row r lies at c XOR (r mod 8):
// without bank conflicts for ldmatrix, and what wgmma calls "128-byte swizzle".
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "cuda/tiled_csl/linear_arguments.h"
#include "cuda/tiled_csl/stream_k.cuh"
#include "cuda/tiled_csl/team.cuh"

namespace flashsparse::linear {

// A block. Multiplier is MmaMultiplier or WgmmaMultiplier: how a team multiplies its tile by x, and
// where it keeps the accumulators.
template <class Source, class Multiplier>
class Block {
  using Shape = typename Source::Shape;

 public:
  __device__ __forceinline__ Block(const typename Source::Weight& weight, const Arguments& a,
                                   uint32_t shared)
      : a_(a),
        team_(shared),
        stream_k_(a, team_, shared, shared + Shape::kSource + Source::kSharedBytes),
        source_(weight, team_, shared + Shape::kSource),
        multiplier_(a, team_.tile, shared + Shape::kX + team_.number * 2 * Shape::kXBytes) {}

  __device__ __forceinline__ void run() {
    stream_k_.find_range();
    const int begin = stream_k_.begin();
    source_.begin(begin, stream_k_.size());
    source_.clear();
    __syncthreads();

    int tile = stream_k_.part_begin(team_.number), row = (begin + tile) / a_.tile_cols;
    next_ = tile;
    end_ = stream_k_.part_begin(team_.number + 1);
    next_column_ = begin + tile - row * a_.tile_cols;
    prefetch();
    if (source_.has_next()) multiplier_.load_x(column_);
    multiplier_.clear();
    while (tile < end_) {
      const int row_end = (row + 1) * a_.tile_cols - begin, stop = min(row_end, end_);
      const bool whole = tile == row_end - a_.tile_cols;
      for (; tile < stop; ++tile) multiply_tile();
      if (stop < end_) {
        stream_k_.end_row(multiplier_, row, whole);
        source_.clear();
        multiplier_.clear();
        ++row;
      }
    }
    stream_k_.add_teams(multiplier_);
    stream_k_.add_blocks();
  }

 private:
  __device__ __forceinline__ void prefetch() {
    if (next_ >= end_) {
      source_.prefetch_none();
      return;
    }
    source_.prefetch(next_);
    column_ = next_column_;
    ++next_;
    next_column_ = column_ + 1 < a_.tile_cols ? column_ + 1 : 0;
  }

  __device__ __forceinline__ void multiply_tile() {
    const auto scattered = source_.scatter();
    multiplier_.wait_x();
    if constexpr (Shape::kWgmma) {
      team_.sync();
      multiplier_.multiply();  // runs while the next loads start
      prefetch();
      if (source_.has_next()) multiplier_.load_x(column_);
    } else {
      prefetch();
      team_.sync();
      multiplier_.multiply();
      if (source_.has_next()) multiplier_.load_x(column_);
    }
    multiplier_.wait();
    team_.sync();
    source_.clear(scattered);
  }

  const Arguments& a_;
  const Team<Shape> team_;
  StreamK<typename Multiplier::Type, Shape> stream_k_;

  Source source_;
  Multiplier multiplier_;

  int next_, next_column_, end_;  // the next tile to prefetch, its column; end of the team's part
  int column_;                    // column of the tile that was prefetched last
};

}  // namespace flashsparse::linear
