// SPDX-License-Identifier: Apache-2.0
// Stream-K (Osama et al., PPoPP 2023): tiles are divided evenly between blocks, whatever the shape
// of the weight.
//
// The tiles, tile row after tile row, form one sequence. Every block takes an equal range of it,
// and every team an equal part of the block's range, through which it goes without waiting for
// other teams. When all teams are done, their partial sums are added up. Blocks that share a tile
// row each write their partial sums in fp32 to the workspace `partials` and increment the row's
// arrival counter; the block that arrives last adds all of them up in the order of blocks. One
// launch, and the same bits every time.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "cuda/shared/linear_y.cuh"
#include "cuda/shared/partial_sums.cuh"
#include "cuda/shared/tile_range.cuh"
#include "cuda/tiled_csl/linear_arguments.h"
#include "cuda/tiled_csl/linear_shape.h"
#include "cuda/tiled_csl/team.cuh"

namespace flashsparse::linear {

// A block's range, and the reduction of its accumulators, which multipliers hold in registers.
// `Type` is that of y.
template <class Type, class Shape>
class StreamK {
 public:
  // `flags`: Shape::kFlagBytes of shared memory.
  __device__ __forceinline__ StreamK(const Arguments& a, const Team<Shape>& team, uint32_t shared,
                                     uint32_t flags)
      : a_(a), team_(team), shared_(shared), flags_(flags) {}

  __device__ __forceinline__ void find_range() {
    tiles_ = a_.tile_rows * a_.tile_cols;
    begin_ = first_tile(tiles_, blockIdx.x, gridDim.x);
    size_ = first_tile(tiles_, blockIdx.x + 1, gridDim.x) - begin_;
  }
  // The range's first tile in the sequence, and its number of tiles.
  __device__ __forceinline__ int begin() const { return begin_; }
  __device__ __forceinline__ int size() const { return size_; }
  // The first tile of a team's part, which is the end of the previous one's, counted from the
  // range's first tile.
  __device__ __forceinline__ int part_begin(int team) const { return size_ * team / Shape::kTeams; }

  // Ends a tile row that is not the last one of the team's part. Its sums are written to y if
  // `whole`, that is if the team had all tiles of the row. Otherwise they are partial, and are
  // written to scratch until the end: at most once for each team, in its first row. Uses the team's
  // tile.
  template <class Multiplier>
  __device__ __forceinline__ void end_row(Multiplier& multiplier, int row, bool whole) const {
    FS_UNROLL
    for (int round = 0; round < kRounds; ++round) {
      multiplier.store_sums(round);
      team_.sync();
      FS_NO_UNROLL
      for (int i = team_.lane; i < quads_of(round); i += Shape::kTeamThreads) {
        const float4 sum = load_shared<float4>(team_.tile + quad_place(i));
        const int quad = round * kRoundQuads + i;
        if (whole) {
          store(row, quad, sum);
        } else {
          store_global(scratch(team_.number) + quad, sum);
        }
      }
      team_.sync();
    }
  }

  // Adds up the partial sums of all teams, row by row of the range. Uses their tiles.
  template <class Multiplier>
  __device__ __forceinline__ void add_teams(Multiplier& multiplier) const {
    const int first = begin_ / a_.tile_cols, last = (begin_ + size_ - 1) / a_.tile_cols;
    FS_UNROLL
    for (int round = 0; round < kRounds; ++round) {
      multiplier.store_sums(round);
      __syncthreads();
      FS_NO_UNROLL
      for (int row = first; row <= last; ++row) {
        const int row_begin = row * a_.tile_cols - begin_, row_end = row_begin + a_.tile_cols;
        // The tiles of teams `from` to `to` hold the sums of parts that end in this row. The part
        // of the next team may have begun in it. (A part without tiles has sums of zero.)
        int from = 0;
        while (part_begin(from + 1) <= row_begin) ++from;
        int to = from;
        while (to < Shape::kTeams && part_begin(to + 1) <= row_end) ++to;
        const bool has_scratch = to < Shape::kTeams && part_begin(to) < row_end;
        if (has_scratch && part_begin(to) <= row_begin) continue;  // that team had the whole row

        float4* const left = partials(blockIdx.x, row == first);
        const bool whole = row_begin >= 0 && row_end <= size_;
        FS_NO_UNROLL
        for (int i = threadIdx.x; i < quads_of(round); i += Shape::kThreads) {
          const int quad = round * kRoundQuads + i;
          float4 sum = make_float4(0, 0, 0, 0);
          for (int team = from; team < to; ++team) {  // in the order of teams
            const uint32_t tile = shared_ + team * Shape::kTileBytes;
            sum = add(sum, load_shared<float4>(tile + quad_place(i)));
          }
          if (has_scratch) sum = add(sum, load_l2(scratch(to) + quad));
          if (whole) {
            store(row, quad, sum);
          } else {
            store_global(left + quad, sum);
          }
        }
      }
      __syncthreads();
    }
  }

  // The last to arrive of the blocks that share a row adds up the partial sums of all. A block
  // shares the first row of its range, or the last, or both. The barrier at the end of add_teams
  // orders every thread's stores before the arrivals.
  __device__ __forceinline__ void add_blocks() const {
    const int first = begin_ / a_.tile_cols, last = (begin_ + size_ - 1) / a_.tile_cols;
    if (threadIdx.x < 2) {
      const int row = threadIdx.x == 0 ? first : last;
      const int row_begin = row * a_.tile_cols - begin_;
      const bool shared = row_begin < 0 || row_begin + a_.tile_cols > size_;
      const bool counts = shared && (threadIdx.x == 0 || first < last);
      store_shared(flags_ + threadIdx.x * uint32_t{sizeof(uint32_t)},
                   counts ? arrive(a_.arrivals + row) : kNotShared);
    }
    __syncthreads();
    FS_NO_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t arrived = load_shared<uint32_t>(flags_ + i * uint32_t{sizeof(uint32_t)});
      if (arrived != kNotShared) add_row(i == 0 ? first : last, arrived);
    }
  }

 private:
  // This block shares the row, and `arrived` others arrived before it.
  __device__ __forceinline__ void add_row(int row, uint32_t arrived) const {
    const int begin = row * a_.tile_cols;
    const int first = block_of_tile(tiles_, begin, gridDim.x);
    const int last = block_of_tile(tiles_, begin + a_.tile_cols - 1, gridDim.x);
    if (arrived != static_cast<uint32_t>(last - first)) return;
    if (threadIdx.x == 0) a_.arrivals[row] = 0;

    constexpr int kMine = Shape::kTokens * kQuads >= 2 * Shape::kThreads ? 2 : 1;
    const int count = a_.tokens * kQuads;
    // The row is the first in the range of every block, except if the first block's range begins
    // earlier.
    const bool starts_row = begin == first_tile(tiles_, first, gridDim.x);
    FS_NO_UNROLL
    for (int i = threadIdx.x; i < count; i += kMine * Shape::kThreads) {
      float4 sums[kMine] = {};
      add_in_order(sums, last - first + 1, [&](int block, int q) {
        const int quad = i + q * Shape::kThreads;
        const float4* const left = partials(first + block, block > 0 || starts_row);
        return quad < count ? load_l2(left + quad) : make_float4(0, 0, 0, 0);
      });
      FS_UNROLL
      for (int q = 0; q < kMine; ++q) {
        const int quad = i + q * Shape::kThreads;
        if (quad < count) store(row, quad, sums[q]);
      }
    }
  }

  // The sums of a tile row are numbered by quads, four rows of a token, and pass through shared
  // memory in rounds of kRoundTokens tokens.
  static constexpr int kQuads = kTileRows / 4;
  static constexpr int kRounds = Shape::kTokens / Shape::kRoundTokens;
  static constexpr int kRoundQuads = Shape::kRoundTokens * kQuads;
  static constexpr uint32_t kNotShared = ~0u;

  __device__ __forceinline__ int quads_of(int round) const {
    return min(a_.tokens - round * Shape::kRoundTokens, Shape::kRoundTokens) * kQuads;
  }
  static __device__ __forceinline__ uint32_t quad_place(int quad_of_round) {
    return sum_place(quad_of_round / kQuads, quad_of_round % kQuads * 4);
  }

  // partials[blocks][Shape::kSlots][tokens of the shape][kTileRows]: a block has a slot for each
  // row that it may share, the first and the last of its range, and a scratch slot for each team.
  __device__ __forceinline__ float4* slot(int block, int number) const {
    const int64_t slots = int64_t{block} * Shape::kSlots + number;
    return reinterpret_cast<float4*>(a_.partials) + slots * (Shape::kTokens * kQuads);
  }
  __device__ __forceinline__ float4* partials(int block, bool is_first) const {
    return slot(block, !is_first);
  }
  __device__ __forceinline__ float4* scratch(int team) const { return slot(blockIdx.x, 2 + team); }

  __device__ __forceinline__ void store(int tile_row, int quad, const float4& sum) const {
    const int row = tile_row * kTileRows + quad % kQuads * 4;
    store_y<Type>(a_.y, a_.bias, a_.rows, quad / kQuads, row, sum);
  }

  const Arguments& a_;
  const Team<Shape> team_;
  const uint32_t shared_, flags_;
  int tiles_;         // of the weight
  int begin_, size_;  // of the block's range
};

}  // namespace flashsparse::linear
