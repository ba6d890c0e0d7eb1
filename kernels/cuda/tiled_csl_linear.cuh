// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from Tiled-CSL words: load as sparse, compute as dense (Flash-LLM, Xia et al.,
// VLDB 2024, section 4). docs/kernels.md tells the story with pictures; here is its plot.
//
// A team of kTeamWarps warps owns a 16 KB buffer of shared memory, one dense 128 x 64 tile, and
// takes tile after tile through it:
//   scatter     each lane stores its words' values at their locations, 32 words at a time, which
//               the order of words puts into 32 different banks
//   prefetch    the words of the team's next tile start on their way into registers
//   multiply    mma from the buffer and from x, which comes straight from global memory (L1)
//   clear       zeros to the same locations, so that the buffer is zero again
// Clearing instead of zero-filling, and a tile a team instead of a tile a block, are where this
// departs from the paper: 0.4 wavefronts of shared memory per 64 weights instead of 1 at 80% zeros,
// and no barrier wider than the team while it works.
//
// Work is cut evenly whatever the shape (stream-K, Osama et al., PPoPP 2023): the units of all
// groups of `group_rows` tile rows, one unit being a tile column of a group, are one long line, and
// every block takes an equal piece. Where a group is shared by blocks, each leaves its sums in fp32
// in `partials`, and the block that arrives last adds them in the order of blocks: one launch, and
// the same bits every time.
#pragma once
#include "common/device.cuh"
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/warp.cuh"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

struct LinearArguments {
  const uint32_t* words;  // sound, as tiled_csl_validate proves it: the kernel trusts locations
  const int32_t* offsets;
  const uint16_t* x;  // [tokens, cols], rows `x_stride` elements apart, on 16 bytes each
  int64_t x_stride;
  const uint16_t* bias;  // [rows], or null
  uint16_t* y;           // [tokens, rows]
  float* partials;       // [blocks][2][group_rows][columns of y here][128]
  uint32_t* arrivals;    // [groups], all zero before and after
  int rows, cols, tokens;
  int tile_rows, tile_cols;
  int group_rows;  // tile rows that a block works on at a time; divides the teams of a block
};

// What a kernel is compiled for; which one runs is decided in linear_plan.h.
//   kFragments  8-token fragments of y: tokens <= 8 * kFragments
//   kTeamWarps  warps that share a tile: 1, 2 or 4
//   kHeld       words that a lane holds in registers; tiles with more are right, and slower
//   kWarps      warps a block
//   kBlocks     blocks a multiprocessor, which bounds the registers
template <int kFragments_, int kTeamWarps_, int kHeld_, int kWarps_, int kBlocks_>
struct LinearShape {
  static constexpr int kFragments = kFragments_, kTeamWarps = kTeamWarps_, kHeld = kHeld_;
  static constexpr int kWarps = kWarps_, kBlocks = kBlocks_;
  static constexpr int kThreads = kWarps * 32, kTeams = kWarps / kTeamWarps;
  static constexpr int kTokens = 8 * kFragments;
  static constexpr uint32_t kTileBytes = kTileElements * sizeof(uint16_t);
  static constexpr uint32_t kSharedBytes = kTeams * kTileBytes + 16;
  // Sums of this many tokens fit the team's buffer at a time when a segment ends.
  static constexpr int kRoundTokens = kTokens < 32 ? kTokens : 32;
  static_assert(kWarps % kTeamWarps == 0 && kHeld % 2 == 0 && 8 % kTeamWarps == 0);
  static_assert(kRoundTokens * kTileRows * sizeof(float) <= kTileBytes);
};

// The piece [begin, end) of the line of units that block `block` of `blocks` takes.
__device__ __forceinline__ int first_unit(int units, int block, int blocks) {
  return static_cast<int>(static_cast<int64_t>(units) * block / blocks);
}
__device__ __forceinline__ int block_of_unit(int units, int unit, int blocks) {
  return static_cast<int>((static_cast<int64_t>(unit + 1) * blocks - 1) / units);
}

// The tiles of one team, in order: every `step`-th tile column of each group in the block's piece.
struct TileWalk {
  int next_begin, piece_end;  // units after this group's, and the end of the piece
  int group, column, column_end;
  int first, step, tile_cols;

  __device__ __forceinline__ TileWalk(int begin, int end, int first, int step, int tile_cols)
      : next_begin(begin), piece_end(end), first(first), step(step), tile_cols(tile_cols) {
    enter_group();
    skip_empty();
  }
  __device__ __forceinline__ bool done() const { return column >= column_end; }
  __device__ __forceinline__ void advance() {
    column += step;
    skip_empty();
  }

 private:
  __device__ __forceinline__ void enter_group() {
    group = next_begin / tile_cols;
    const int start = group * tile_cols, stop = min(start + tile_cols, piece_end);
    column = next_begin - start + first;
    column_end = stop - start;
    next_begin = stop;
  }
  __device__ __forceinline__ void skip_empty() {
    while (column >= column_end && next_begin < piece_end) enter_group();
  }
};

template <class Type, class Shape>
class LinearBlock {
 public:
  __device__ __forceinline__ LinearBlock(const LinearArguments& a, uint32_t shared)
      : a_(a),
        shared_(shared),
        lane_(threadIdx.x % 32),
        team_warp_(threadIdx.x / 32 % Shape::kTeamWarps),
        team_(threadIdx.x / 32 / Shape::kTeamWarps),
        tile_(shared + team_ * Shape::kTileBytes),
        depth_(Shape::kTeams / a.group_rows) {}

  __device__ __forceinline__ void run() {
    const int groups = (a_.tile_rows + a_.group_rows - 1) / a_.group_rows;
    const int units = groups * a_.tile_cols;
    const int end = first_unit(units, blockIdx.x + 1, gridDim.x);
    int unit = first_unit(units, blockIdx.x, gridDim.x);

    zero_tile();
    TileWalk walk(unit, end, team_ / a_.group_rows, depth_, a_.tile_cols);
    load_words(walk);
    while (unit < end) {
      const int group = unit / a_.tile_cols, group_begin = group * a_.tile_cols;
      const int stop = min(group_begin + a_.tile_cols, end);
      const bool whole = unit == group_begin && stop == group_begin + a_.tile_cols;
      clear_sums();
      while (!walk.done() && walk.group == group) multiply_tile(walk);
      finish(group, units, whole, stop == end);
      unit = stop;
    }
  }

 private:
  static constexpr int kBlocksOfRows = 8 / Shape::kTeamWarps;  // 16-row blocks of a warp
  static constexpr int kStride = 32 * Shape::kTeamWarps;       // words that a team stores at once

  // ---- one tile -------------------------------------------------------------------------------

  __device__ __forceinline__ int tile_row_of(int group) const {
    return group * a_.group_rows + team_ % a_.group_rows;
  }

  // Starts the loads of the tile that the walk has come to. Its words are rows of kStride, and a
  // last row that is padded by repeating the last word, as the format itself does.
  __device__ __forceinline__ void load_words(const TileWalk& walk) {
    count_ = 0;
    if (walk.done() || tile_row_of(walk.group) >= a_.tile_rows) return;
    const int64_t tile = static_cast<int64_t>(tile_row_of(walk.group)) * a_.tile_cols + walk.column;
    const int begin = load_readonly(a_.offsets + tile);
    count_ = load_readonly(a_.offsets + tile + 1) - begin;
    tile_words_ = a_.words + begin;
    const uint32_t* const mine = tile_words_ + team_warp_ * 32 + lane_;
      FS_UNROLL
    for (int i = 0; i < Shape::kHeld; ++i) {
      if ((i + 1) * kStride <= count_) words_[i] = load_streaming(mine + i * kStride);
    }
    const int last_row = count_ / kStride * kStride + team_warp_ * 32 + lane_;
    if (count_ % kStride != 0) last_ = load_streaming(tile_words_ + min(last_row, count_ - 1));
  }

  __device__ __forceinline__ void scatter_word(uint32_t word) {
    store_shared_same(dp2a_lo(word, 0x0002, tile_), bits_of(word));
  }

  __device__ __forceinline__ void multiply_tile(TileWalk& walk) {
    const int count = count_, column = walk.column;
    if (count == 0) {  // nothing kept, or no such tile row
      walk.advance();
      load_words(walk);
      return;
    }
    load_x(column);

    uint32_t places[Shape::kHeld / 2];
    const uint32_t last = last_;
      FS_UNROLL
    for (int i = 0; i < Shape::kHeld; ++i) {
      if ((i + 1) * kStride <= count) scatter_word(words_[i]);
    }
    if (count % kStride != 0) scatter_word(last);
    const bool overfull = count >= (Shape::kHeld + 1) * kStride;
    if (overfull) {
      const int end = count / kStride * kStride;
      for (int i = Shape::kHeld * kStride + team_warp_ * 32 + lane_; i < end; i += kStride) {
        scatter_word(load_streaming(tile_words_ + i));
      }
    }
      FS_UNROLL
    for (int i = 0; i < Shape::kHeld; i += 2) places[i / 2] = prmt(words_[i], words_[i + 1], 0x5410);

    walk.advance();
    load_words(walk);

    sync_team();
    multiply();
    sync_team();
    if (overfull) {
      zero_tile();
    } else {
      FS_UNROLL
      for (int i = 0; i < Shape::kHeld; ++i) {
        if ((i + 1) * kStride <= count) {
          store_shared_same(dp2a_lo(places[i / 2], i % 2 ? 0x0200 : 0x0002, tile_), 0);
        }
      }
      if (count % kStride != 0) store_shared_same(dp2a_lo(last, 0x0002, tile_), 0);
      sync_team();
    }
  }

  // The columns of a tile in the order that mma sees them: any order will do as long as W and x
  // agree. Lane t of a group of four takes the 16-byte chunks 2t and 2t + 1 of every row, of W by a
  // 16-byte load from shared memory (swizzled: no two of eight lanes in one bank), of x by 16-byte
  // loads from global memory. Each chunk is the lane's share of two mma steps.
  __device__ __forceinline__ void load_x(int column) {
    const int chunk = 2 * (lane_ % 4);
    const int first = column * kTileCols + chunk * 8;
      FS_UNROLL
    for (int f = 0; f < Shape::kFragments; ++f) {
      // Columns of y are independent: tokens past the last repeat it, and are not stored.
      const int token = min(8 * f + lane_ / 4, a_.tokens - 1);
      const uint16_t* const row = a_.x + token * a_.x_stride + first;
      FS_UNROLL
      for (int h = 0; h < 2; ++h) {
        x_[f][h] = first + h * 8 < a_.cols
                       ? load_readonly(reinterpret_cast<const uint4*>(row + h * 8))
                       : make_uint4(0, 0, 0, 0);
      }
    }
  }

  __device__ __forceinline__ void multiply() {
    const int row = lane_ / 4;  // in blocks of 8: also the row's swizzle
    const uint32_t base = tile_ + (team_warp_ * kBlocksOfRows * 16 + row) * kTileCols * 2;
    const uint32_t chunks[2] = {(2 * (lane_ % 4) ^ row) * 16u, ((2 * (lane_ % 4) + 1) ^ row) * 16u};
      FS_UNROLL
    for (int b = 0; b < kBlocksOfRows; ++b) {
      FS_UNROLL
      for (int h = 0; h < 2; ++h) {
        const uint32_t place = base + b * 16 * kTileCols * 2 + chunks[h];
        const uint4 low = load_shared<uint4>(place);
        const uint4 high = load_shared<uint4>(place + 8 * kTileCols * 2);
        const uint32_t first[4] = {low.x, high.x, low.y, high.y};
        const uint32_t second[4] = {low.z, high.z, low.w, high.w};
      FS_UNROLL
        for (int f = 0; f < Shape::kFragments; ++f) {
          mma_m16n8k16<Type>(sums_[b][f], first, x_[f][h].x, x_[f][h].y);
        }
      FS_UNROLL
        for (int f = 0; f < Shape::kFragments; ++f) {
          mma_m16n8k16<Type>(sums_[b][f], second, x_[f][h].z, x_[f][h].w);
        }
      }
    }
  }

  __device__ __forceinline__ void zero_tile() {
    for (uint32_t i = (team_warp_ * 32 + lane_) * 16; i < Shape::kTileBytes; i += kStride * 16) {
      store_shared(tile_ + i, make_uint4(0, 0, 0, 0));
    }
    sync_team();
  }

  __device__ __forceinline__ void sync_team() {
    if constexpr (Shape::kTeamWarps == 1) {
      __syncwarp();
    } else {
      sync_threads_of(1 + team_, 32 * Shape::kTeamWarps);
    }
  }

  // ---- the end of a group ---------------------------------------------------------------------

  __device__ __forceinline__ void clear_sums() {
      FS_UNROLL
    for (int b = 0; b < kBlocksOfRows; ++b) {
      FS_UNROLL
      for (int f = 0; f < Shape::kFragments; ++f) {
      FS_UNROLL
        for (int i = 0; i < 4; ++i) sums_[b][f][i] = 0;
      }
    }
  }

  // Sums lie in a team's buffer as [token][row], the rows swizzled so that neither the stores below
  // (8 rows of 4 tokens) nor the loads (rows of one token, 4 a lane) meet a bank twice.
  static __device__ __forceinline__ uint32_t sum_place(int token, int row) {
    return (token * kTileRows + (row ^ (token / 2 % 4 * 8))) * sizeof(float);
  }

  // Adds up the sums of the teams that worked on the same rows, and of all blocks that did.
  __device__ __forceinline__ void finish(int group, int units, bool whole, bool final) {
      FS_UNROLL
    for (int round = 0; round < Shape::kTokens / Shape::kRoundTokens; ++round) {
      FS_UNROLL
      for (int b = 0; b < kBlocksOfRows; ++b) {
      FS_UNROLL
        for (int f = 0; f < Shape::kRoundTokens / 8; ++f) {
      FS_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int row = (team_warp_ * kBlocksOfRows + b) * 16 + lane_ / 4 + i / 2 * 8;
            const int token = 8 * f + lane_ % 4 * 2 + i % 2;
            store_shared(tile_ + sum_place(token, row),
                         sums_[b][round * Shape::kRoundTokens / 8 + f][i]);
          }
        }
      }
      __syncthreads();
      const int tokens = min(a_.tokens - round * Shape::kRoundTokens, Shape::kRoundTokens);
      for_each_quad(tokens, [&](int in_group, int token, int row) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (int d = 0; d < depth_; ++d) {  // in the order of teams
          const uint32_t buffer = shared_ + (d * a_.group_rows + in_group) * Shape::kTileBytes;
          sum = add(sum, load_shared<float4>(buffer + sum_place(token, row)));
        }
        token += round * Shape::kRoundTokens;
        if (whole) {
          store_y(group, in_group, token, row, sum);
        } else {
          store_global(partial(blockIdx.x, group, units, in_group, token, row), sum);
        }
      });
      __syncthreads();
      if (!final || round + 1 < Shape::kTokens / Shape::kRoundTokens) zero_tile();
    }
    if (!whole) add_blocks(group, units);
  }

  // The last block to leave its partial sums of a group adds them all.
  __device__ __forceinline__ void add_blocks(int group, int units) {
    const int begin = group * a_.tile_cols;
    const int first = block_of_unit(units, begin, gridDim.x);
    const int last = block_of_unit(units, begin + a_.tile_cols - 1, gridDim.x);
    // The barrier that `finish` ended with put every thread's stores before this arrival.
    const uint32_t flag = shared_ + Shape::kTeams * Shape::kTileBytes;
    if (threadIdx.x == 0) store_shared(flag, arrive(a_.arrivals + group));
    __syncthreads();
    if (load_shared<uint32_t>(flag) != static_cast<uint32_t>(last - first)) return;
    if (threadIdx.x == 0) a_.arrivals[group] = 0;
    for_each_quad(a_.tokens, [&](int in_group, int token, int row) {
      float4 sum = make_float4(0, 0, 0, 0);
      for (int block = first; block <= last; ++block) {
        sum = add(sum, load_l2(partial(block, group, units, in_group, token, row)));
      }
      store_y(group, in_group, token, row, sum);
    });
  }

  // Calls body(tile row of the group, token, row) for every four rows of the group's sums.
  template <class Body>
  __device__ __forceinline__ void for_each_quad(int tokens, Body body) const {
    constexpr int kQuads = kTileRows / 4;
      FS_NO_UNROLL
    for (int i = threadIdx.x; i < a_.group_rows * tokens * kQuads; i += Shape::kThreads) {
      body(i / kQuads / tokens, i / kQuads % tokens, i % kQuads * 4);
    }
  }

  // A block shares at most two groups with others: the first and the last of its piece.
  __device__ __forceinline__ float4* partial(int block, int group, int units, int in_group,
                                             int token, int row) const {
    const int first = first_unit(units, block, gridDim.x) / a_.tile_cols;
    const int64_t slot = (int64_t{block} * 2 + (group != first)) * a_.group_rows + in_group;
    return reinterpret_cast<float4*>(a_.partials +
                                     (slot * Shape::kTokens + token) * kTileRows + row);
  }

  __device__ __forceinline__ void store_y(int group, int in_group, int token, int row,
                                          const float4& sum) const {
    const int64_t first = static_cast<int64_t>(group * a_.group_rows + in_group) * kTileRows + row;
    const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
    uint16_t* const place = a_.y + static_cast<int64_t>(token) * a_.rows + first;
    uint16_t values[4];
      FS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool inside = first + i < a_.rows;
      const float bias = a_.bias && inside ? to_float<Type>(a_.bias[first + i]) : 0.0f;
      values[i] = from_float<Type>(sums[i] + bias);
    }
    if (a_.rows % 4 == 0) {
      if (first < a_.rows) {
        store_global(reinterpret_cast<uint2*>(place),
                     make_uint2(values[0] | uint32_t{values[1]} << 16,
                                values[2] | uint32_t{values[3]} << 16));
      }
    } else {
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (first + i < a_.rows) store_global(place + i, values[i]);
      }
    }
  }

  static __device__ __forceinline__ float4 add(const float4& a, const float4& b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }

  const LinearArguments& a_;
  const uint32_t shared_;
  const int lane_, team_warp_, team_;
  const uint32_t tile_;  // the team's buffer
  const int depth_;      // teams of a block that work on the same rows

  uint32_t words_[Shape::kHeld];  // of the next tile
  uint32_t last_ = 0;             // its last row, where that is not whole
  const uint32_t* tile_words_ = nullptr;
  int count_ = 0;
  uint4 x_[Shape::kFragments][2];
  float sums_[kBlocksOfRows][Shape::kFragments][4];
};

// Launch with any number of blocks up to the number of units, Shape::kThreads threads and
// Shape::kSharedBytes of dynamic shared memory.
template <class Type, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    linear_kernel(const LinearArguments arguments) {
  FS_DYNAMIC_SHARED(shared);
  LinearBlock<Type, Shape>(arguments, shared_address(shared)).run();
}

}  // namespace flashsparse::tiled_csl
