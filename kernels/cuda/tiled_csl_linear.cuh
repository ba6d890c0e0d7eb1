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
// Work is cut evenly whatever the shape (stream-K, Osama et al., PPoPP 2023): the tiles, tile row
// after tile row, are one long line. Every block takes an equal piece of it, and of that every team
// an equal run, which it goes through without waiting for anyone. When all runs have ended the
// teams' sums are added up. Where a row is shared by blocks, each leaves its sums in fp32 in
// `partials`, and the block that arrives last adds them in the order of blocks: one launch, and the
// same bits every time.
#pragma once
#include <utility>

#include "common/device.cuh"
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/warp.cuh"
#include "cuda/linear_plan.h"
#include "cuda/linear_y.cuh"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

struct LinearArguments {
  const uint32_t* words;  // sound, as tiled_csl_validate proves it: the kernel trusts locations
  const int32_t* offsets;
  const uint16_t* x;  // [tokens, cols], rows `x_stride` elements apart, on 16 bytes each,
                      // and zero from cols up to a multiple of 64
  int x_stride;
  const uint16_t* bias;  // [rows], or null
  uint16_t* y;           // [tokens, rows]
  float* partials;       // [blocks][Shape::kSlots][tokens of the shape][128]
  uint32_t* arrivals;    // [tile_rows], all zero before and after
  int rows, cols, tokens;
  int tile_rows, tile_cols;
};

// What a kernel is compiled for; which one runs is decided in linear_plan.h.
//   kTokens     of y at most: 8, 16, 32, 64 or 128
//   kHopper     for that architecture, or for all others
//   kWgmma      Hopper's wgmma (teams of 4 warps) or the mma of every architecture
//   kTeamWarps  warps that share a tile: 1, 2 or 4
//   kHeld       words that a lane holds in registers; tiles with more are right, and slower
//   kWarps      warps a block
//   kBlocks     blocks a multiprocessor, which bounds the registers
template <int kTokens_, bool kHopper_, bool kWgmma_, int kTeamWarps_, int kHeld_, int kWarps_,
          int kBlocks_>
struct LinearShape {
  static constexpr int kTokens = kTokens_, kTeamWarps = kTeamWarps_, kHeld = kHeld_;
  static constexpr int kWarps = kWarps_, kBlocks = kBlocks_;
  static constexpr bool kHopper = kHopper_, kWgmma = kWgmma_;
  static constexpr int kThreads = kWarps * 32, kTeams = kWarps / kTeamWarps;
  static constexpr uint32_t kTileBytes = kTileElements * sizeof(uint16_t);
  // x of a tile; there is room for this tile's and the next's.
  static constexpr uint32_t kXBytes = kTokens * kTileCols * sizeof(uint16_t);
  // Then the offsets of the block's tiles, and two flags.
  static constexpr uint32_t kOffsets = kTeams * (kTileBytes + 2 * kXBytes);
  static constexpr uint32_t kFlags = kOffsets + (kMaxPiece + 1) * sizeof(int32_t);
  static constexpr uint32_t kSharedBytes = kFlags + 2 * sizeof(uint32_t);
  static constexpr int kSlots = 2 + kTeams;  // of `partials`, a block
  // Sums of this many tokens fit the team's buffer at a time when a row ends.
  static constexpr int kRoundTokens = kTokens < 32 ? kTokens : 32;
  static_assert(kWarps % kTeamWarps == 0 && (!kWgmma || (kHopper && kTeamWarps == 4)));
  static_assert(kRoundTokens * kTileRows * sizeof(float) <= kTileBytes);
};

// The piece of the line that a block takes begins here. tiles * (blocks + 1) < 2^32, so that 32
// bits do.
__device__ __forceinline__ int first_tile(uint32_t tiles, uint32_t block, uint32_t blocks) {
  return tiles * block / blocks;
}
__device__ __forceinline__ int block_of_tile(uint32_t tiles, uint32_t tile, uint32_t blocks) {
  return ((tile + 1) * blocks - 1) / tiles;
}

// When a row ends, sums lie in a team's buffer as [token][row], the rows swizzled so that the
// stores (tokens 0, 2, 4, 6 of 8 rows, or 8 tokens of 8 rows) and the loads (four rows a lane, of
// one token) spread over the banks.
__device__ __forceinline__ uint32_t sum_place(int token, int row) {
  return (token * kTileRows + (row ^ token % 8 * 4)) * sizeof(float);
}

// One block of the launch. Multiplier is MmaMultiplier or WgmmaMultiplier: how a team multiplies
// the tile in its buffer by x, and where it keeps the sums.
template <class Shape, class Multiplier>
class LinearBlock {
 public:
  __device__ __forceinline__ LinearBlock(const LinearArguments& a, uint32_t shared)
      : a_(a),
        shared_(shared),
        lane_in_team_(threadIdx.x % kStride),
        // From lane 0, so that the compiler knows it for the same in every lane of a warp.
        team_(__shfl_sync(~0u, static_cast<int>(threadIdx.x / kStride), 0)),
        tile_(shared + team_ * Shape::kTileBytes),
        multiplier_(a, tile_,
                    shared + Shape::kTeams * Shape::kTileBytes + team_ * 2 * Shape::kXBytes) {}

  __device__ __forceinline__ void run() {
    const int tiles = a_.tile_rows * a_.tile_cols;
    begin_ = first_tile(tiles, blockIdx.x, gridDim.x);
    piece_ = first_tile(tiles, blockIdx.x + 1, gridDim.x) - begin_;
    for (int i = threadIdx.x; i <= piece_; i += Shape::kThreads) {
      const uint32_t offset = static_cast<uint32_t>(load_readonly(a_.offsets + begin_ + i));
      store_shared(shared_ + Shape::kOffsets + i * uint32_t{sizeof offset}, offset);
    }
    zero_tile();
    __syncthreads();

    int tile = run_begin(team_), row = (begin_ + tile) / a_.tile_cols;
    next_ = tile;
    run_end_ = run_begin(team_ + 1);
    next_column_ = begin_ + tile - row * a_.tile_cols;
    load_next();
    if (count_ >= 0) multiplier_.load_x(column_);
    multiplier_.clear();
    while (tile < run_end_) {
      const int row_end = (row + 1) * a_.tile_cols - begin_, stop = min(row_end, run_end_);
      const bool whole = tile == row_end - a_.tile_cols;
      for (; tile < stop; ++tile) multiply_tile();
      if (stop < run_end_) {
        leave_row(row, whole);
        multiplier_.clear();
        ++row;
      }
    }
    add_teams();
    add_blocks(tiles);
  }

 private:
  static constexpr int kStride =
      32 * Shape::kTeamWarps;  // words that a team loads or stores at once
  static constexpr int kChunk = kLinearChunk, kRows = kChunk / kStride;
  static_assert(Shape::kHeld % kRows == 0);

  // ---- one tile -------------------------------------------------------------------------------

  // Starts the loads of the words of the team's next tile.
  //
  // A team loads words by chunks of 128, kRows rows, a lane one word of each row. What is left
  // after the whole chunks, the tail, is one more chunk, padded by repeating the last word as the
  // format itself does. So a chunk is there or it is not: one predicate for all its loads, and
  // later for its stores.
  __device__ __forceinline__ void load_next() {
    count_ = -1;
    if (next_ >= run_end_) return;
    const uint32_t place = shared_ + Shape::kOffsets + next_ * uint32_t{sizeof(uint32_t)};
    const uint32_t begin = load_shared<uint32_t>(place);
    count_ = static_cast<int>(load_shared<uint32_t>(place + sizeof(uint32_t)) - begin);
    column_ = next_column_;
    ++next_;
    next_column_ = column_ + 1 < a_.tile_cols ? column_ + 1 : 0;
    tile_words_ = a_.words + begin;
    const uint32_t* const mine = tile_words_ + lane_in_team_;
    const int chunks = count_ / kChunk;
    load_chunks(mine, chunks, std::make_integer_sequence<int, Shape::kHeld>());
    FS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int word = min(chunks * kChunk + r * kStride + lane_in_team_, count_ - 1);
      load_streaming_if<0>(chunks * kChunk < count_, tile_words_ + word, tail_[r]);
    }
  }
  template <int... i>
  __device__ __forceinline__ void load_chunks(const uint32_t* mine, int chunks,
                                              std::integer_sequence<int, i...>) {
    (load_streaming_if<i * kStride>(i / kRows < chunks, mine, words_[i]), ...);
  }

  // The words in registers by number, the tail after the others.
  static constexpr int kPlaces = (Shape::kHeld + kRows + 1) / 2;
  __device__ __forceinline__ uint32_t word(int i) const {
    return i < Shape::kHeld ? words_[i] : tail_[i - Shape::kHeld < kRows ? i - Shape::kHeld : 0];
  }

  __device__ __forceinline__ void scatter_if(bool condition, uint32_t word) {
    store_shared_same_if(condition, dp2a_lo(word, 0x0002, tile_), bits_of(word));
  }
  // places: two locations, of which `which` is cleared.
  __device__ __forceinline__ void clear_if(bool condition, uint32_t places, int which) {
    store_shared_same_if(condition, dp2a_lo(places, which ? 0x0200 : 0x0002, tile_), 0);
  }

  __device__ __forceinline__ void multiply_tile() {
    constexpr uint32_t kLocations = 0x5410;  // the lower halves of two words
    const int chunks = count_ / kChunk;
    const bool tail = chunks * kChunk < count_;
    const bool overfull = chunks > Shape::kHeld / kRows;
    FS_UNROLL
    for (int i = 0; i < Shape::kHeld; ++i) scatter_if(i / kRows < chunks, words_[i]);
    FS_UNROLL
    for (int r = 0; r < kRows; ++r) scatter_if(tail, tail_[r]);
    if (overfull) {
      FS_NO_UNROLL
      for (int i = Shape::kHeld * kStride + lane_in_team_; i < chunks * kChunk; i += kStride) {
        scatter_if(true, load_streaming(tile_words_ + i));
      }
    }
    // Locations, two a register: the words' own registers go to the next tile's words.
    uint32_t places[kPlaces];
    FS_UNROLL
    for (int i = 0; i < kPlaces; ++i) places[i] = prmt(word(2 * i), word(2 * i + 1), kLocations);

    multiplier_.x_is_there();
    if constexpr (Shape::kWgmma) {
      sync_team();
      multiplier_.multiply();  // goes on while the next loads start
      load_next();
      if (count_ >= 0) multiplier_.load_x(column_);
    } else {
      load_next();
      sync_team();
      multiplier_.multiply();
      if (count_ >= 0) multiplier_.load_x(column_);
    }
    multiplier_.wait();
    sync_team();
    if (overfull) {
      zero_tile();
    } else {
      FS_UNROLL
      for (int i = 0; i < Shape::kHeld + kRows; ++i) {
        clear_if(i < Shape::kHeld ? i / kRows < chunks : tail, places[i / 2], i % 2);
      }
      sync_team();
    }
  }

  __device__ __forceinline__ void zero_tile() {
    FS_NO_UNROLL
    for (uint32_t i = lane_in_team_ * 16; i < Shape::kTileBytes; i += kStride * 16) {
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

  // ---- sums -----------------------------------------------------------------------------------

  // A team's run begins at this tile of the piece: equal runs, one after the other.
  __device__ __forceinline__ int run_begin(int team) const { return piece_ * team / Shape::kTeams; }

  // A row ends, and the team's run does not: the sums go to y where all of them are the team's,
  // else aside until the end, which happens once at most, in the row that the run begins in.
  __device__ __forceinline__ void leave_row(int row, bool whole) {
    FS_UNROLL
    for (int round = 0; round < kRounds; ++round) {
      multiplier_.store_sums(round);
      sync_team();
      FS_NO_UNROLL
      for (int i = lane_in_team_; i < quads_of(round); i += kStride) {
        const float4 sum = load_shared<float4>(tile_ + quad_place(i));
        const int quad = round * kRoundQuads + i;
        if (whole) {
          store(row, quad, sum);
        } else {
          store_global(aside(team_) + quad, sum);
        }
      }
      sync_team();
    }
    zero_tile();
  }

  // All runs have ended. Adds up the sums of the teams, row after row of the piece.
  __device__ __forceinline__ void add_teams() {
    const int first = begin_ / a_.tile_cols, last = (begin_ + piece_ - 1) / a_.tile_cols;
    FS_UNROLL
    for (int round = 0; round < kRounds; ++round) {
      multiplier_.store_sums(round);
      __syncthreads();
      FS_NO_UNROLL
      for (int row = first; row <= last; ++row) {
        const int row_begin = row * a_.tile_cols - begin_, row_end = row_begin + a_.tile_cols;
        // In the teams' buffers are the sums of those whose runs end in this row; the next team's
        // may have begun in it. (A run without tiles is zero.)
        int from = 0;
        while (run_begin(from + 1) <= row_begin) ++from;
        int to = from;
        while (to < Shape::kTeams && run_begin(to + 1) <= row_end) ++to;
        const bool has_aside = to < Shape::kTeams && run_begin(to) < row_end;
        if (has_aside && run_begin(to) <= row_begin) continue;  // that team stored all of y

        float4* const left = partials(blockIdx.x, row == first);
        const bool whole = row_begin >= 0 && row_end <= piece_;
        FS_NO_UNROLL
        for (int i = threadIdx.x; i < quads_of(round); i += Shape::kThreads) {
          const int quad = round * kRoundQuads + i;
          float4 sum = make_float4(0, 0, 0, 0);
          for (int team = from; team < to; ++team) {  // in their order
            const uint32_t buffer = shared_ + team * Shape::kTileBytes;
            sum = add(sum, load_shared<float4>(buffer + quad_place(i)));
          }
          if (has_aside) sum = add(sum, load_l2(aside(to) + quad));
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

  // Of the blocks that share a row, the last one to arrive adds up what they have left. A block
  // shares the first row of its piece, or the last, or both. The barrier that add_teams ends with
  // put every thread's stores before the arrivals.
  __device__ __forceinline__ void add_blocks(int tiles) {
    const int first = begin_ / a_.tile_cols, last = (begin_ + piece_ - 1) / a_.tile_cols;
    const uint32_t flags = shared_ + Shape::kFlags;
    if (threadIdx.x < 2) {
      const int row = threadIdx.x == 0 ? first : last;
      const int row_begin = row * a_.tile_cols - begin_;
      const bool shared = row_begin < 0 || row_begin + a_.tile_cols > piece_;
      const bool counts = shared && (threadIdx.x == 0 || first < last);
      store_shared(flags + threadIdx.x * uint32_t{sizeof(uint32_t)},
                   counts ? arrive(a_.arrivals + row) : kNotShared);
    }
    __syncthreads();
    FS_NO_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t arrived = load_shared<uint32_t>(flags + i * uint32_t{sizeof(uint32_t)});
      if (arrived != kNotShared) add_row(i == 0 ? first : last, arrived, tiles);
    }
  }

  // The block is one of those that share the row, and `arrived` arrived before it.
  __device__ __forceinline__ void add_row(int row, uint32_t arrived, int tiles) {
    const int begin = row * a_.tile_cols;
    const int first = block_of_tile(tiles, begin, gridDim.x);
    const int last = block_of_tile(tiles, begin + a_.tile_cols - 1, gridDim.x);
    if (arrived != static_cast<uint32_t>(last - first)) return;
    if (threadIdx.x == 0) a_.arrivals[row] = 0;

    // Many loads at once: each takes its time.
    constexpr int kAhead = 4, kMine = Shape::kTokens * kQuads >= 2 * Shape::kThreads ? 2 : 1;
    const int count = a_.tokens * kQuads;
    FS_NO_UNROLL
    for (int i = threadIdx.x; i < count; i += kMine * Shape::kThreads) {
      float4 sums[kMine] = {};
      FS_NO_UNROLL
      for (int block = first; block <= last; block += kAhead) {
        float4 parts[kAhead][kMine] = {};
        FS_UNROLL
        for (int b = 0; b < kAhead; ++b) {
          // The row is the first of every block but of one that begins before it.
          const bool is_first = block + b > first || begin == first_tile(tiles, first, gridDim.x);
          const float4* const left = partials(min(block + b, last), is_first);
          FS_UNROLL
          for (int q = 0; q < kMine; ++q) {
            const int quad = i + q * Shape::kThreads;
            if (block + b <= last && quad < count) parts[b][q] = load_l2(left + quad);
          }
        }
        FS_UNROLL
        for (int b = 0; b < kAhead; ++b) {  // in the order of blocks
          FS_UNROLL
          for (int q = 0; q < kMine; ++q) sums[q] = add(sums[q], parts[b][q]);
        }
      }
      FS_UNROLL
      for (int q = 0; q < kMine; ++q) {
        const int quad = i + q * Shape::kThreads;
        if (quad < count) store(row, quad, sums[q]);
      }
    }
  }

  // The sums of a tile row are numbered by quads, four rows of a token, and go through shared
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

  // A block has a slot of `partials` for each row that it may share, the first and the last of its
  // piece, and one for what each team puts aside.
  __device__ __forceinline__ float4* slot(int block, int number) const {
    const int64_t slots = int64_t{block} * Shape::kSlots + number;
    return reinterpret_cast<float4*>(a_.partials) + slots * (Shape::kTokens * kQuads);
  }
  __device__ __forceinline__ float4* partials(int block, bool is_first) const {
    return slot(block, !is_first);
  }
  __device__ __forceinline__ float4* aside(int team) const { return slot(blockIdx.x, 2 + team); }

  __device__ __forceinline__ void store(int tile_row, int quad, const float4& sum) const {
    const int row = tile_row * kTileRows + quad % kQuads * 4;
    store_y<typename Multiplier::Type>(a_.y, a_.bias, a_.rows, quad / kQuads, row, sum);
  }

  const LinearArguments& a_;
  const uint32_t shared_;
  const int lane_in_team_, team_;
  const uint32_t tile_;  // the team's buffer

  int begin_, piece_;                 // the block's tiles
  int next_, next_column_, run_end_;  // of the piece: the team's tile after the one
  int column_, count_;  // whose words are loaded or on their way; -1 words after the last tile
  const uint32_t* tile_words_;
  uint32_t words_[Shape::kHeld] = {}, tail_[kRows] = {};

  Multiplier multiplier_;
};

}  // namespace flashsparse::tiled_csl
