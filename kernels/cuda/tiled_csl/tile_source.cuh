// SPDX-License-Identifier: Apache-2.0
// Tiles of a Tiled-CSL weight for the stream-K kernel (cuda/tiled_csl/linear_block.cuh).
//
//   scatter   each lane stores its words' values at their locations; the order of the words puts
//             the 32 stores of a warp into 32 different banks
//   clear     zeros are stored at the same locations. The paper zero-fills the whole tile instead:
//             1 shared-memory wavefront per 64 weights, where clearing takes 0.4 at 80% zeros.
#pragma once
#include <utility>

#include "common/device.cuh"
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "cuda/tiled_csl/team.cuh"
#include "cuda/tiled_csl/words.h"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

static_assert(kTileRows == linear::kTileRows && kTileCols == linear::kTileCols);

// Words that a team loads, and stores, under one predicate.
inline constexpr int kChunk = 128;

template <class Shape_,  // linear::Shape
          int kHeld>  // words that a lane holds in registers; tiles with more are right, and slower
class TileSource {
  static constexpr int kStride = Shape_::kTeamThreads;  // words that a team loads or stores at once
  static constexpr int kRows = kChunk / kStride;        // in a chunk: a lane has one word of each
  static_assert(kHeld % kRows == 0);

 public:
  using Shape = Shape_;
  using Weight = Words;
  // The offsets of the block's tiles, and the end of the last one.
  static constexpr uint32_t kSharedBytes = (linear::kMaxRange + 1) * sizeof(int32_t);

  __device__ __forceinline__ TileSource(const Words& weight, const linear::Team<Shape>& team,
                                        uint32_t shared)
      : weight_(weight), team_(team), offsets_(shared) {}

  __device__ __forceinline__ void begin(int first, int count) {
    for (int i = threadIdx.x; i <= count; i += Shape::kThreads) {
      const uint32_t offset = static_cast<uint32_t>(load_readonly(weight_.offsets + first + i));
      store_shared(offsets_ + i * uint32_t{sizeof offset}, offset);
    }
  }

  // Chunks of words that are in registers, or in flight to them: kRows rows, of which a lane has
  // one word each. What remains after the whole chunks (the tail) is one more chunk, padded like
  // the format by repeating the last word. So a chunk exists or it does not: its loads, and later
  // its stores, take one predicate.
  __device__ __forceinline__ void prefetch(int tile) {
    const uint32_t place = offsets_ + tile * uint32_t{sizeof(uint32_t)};
    const uint32_t begin = load_shared<uint32_t>(place);
    count_ = static_cast<int>(load_shared<uint32_t>(place + sizeof(uint32_t)) - begin);
    tile_words_ = weight_.words + begin;
    const uint32_t* const mine = tile_words_ + team_.lane;
    const int chunks = count_ / kChunk;
    load_chunks(mine, chunks, std::make_integer_sequence<int, kHeld>());
    FS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int word = min(chunks * kChunk + r * kStride + team_.lane, count_ - 1);
      load_streaming_if<0>(chunks * kChunk < count_, tile_words_ + word, tail_[r]);
    }
  }
  __device__ __forceinline__ void prefetch_none() { count_ = -1; }
  __device__ __forceinline__ bool has_next() const { return count_ >= 0; }

  // What scatter() wrote.
  struct Scattered {
    static constexpr int kPlaces = (kHeld + kRows + 1) / 2;

    int chunks;
    bool tail;
    bool overfull;  // more words than the registers hold
    // Locations, two a register: the words' own registers are reused for the next tile.
    uint32_t places[kPlaces];
  };

  __device__ __forceinline__ Scattered scatter() {
    constexpr uint32_t kLocations = 0x5410;  // the lower halves of two words
    Scattered scattered;
    const int chunks = scattered.chunks = count_ / kChunk;
    const bool tail = scattered.tail = chunks * kChunk < count_;
    scattered.overfull = chunks > kHeld / kRows;
    FS_UNROLL
    for (int i = 0; i < kHeld; ++i) scatter_if(i / kRows < chunks, words_[i]);
    FS_UNROLL
    for (int r = 0; r < kRows; ++r) scatter_if(tail, tail_[r]);
    if (scattered.overfull) {
      FS_NO_UNROLL
      for (int i = kHeld * kStride + team_.lane; i < chunks * kChunk; i += kStride) {
        scatter_if(true, load_streaming(tile_words_ + i));
      }
    }
    FS_UNROLL
    for (int i = 0; i < Scattered::kPlaces; ++i) {
      scattered.places[i] = prmt(word(2 * i), word(2 * i + 1), kLocations);
    }
    return scattered;
  }

  __device__ __forceinline__ void clear(const Scattered& scattered) {
    if (scattered.overfull) {
      clear();
      return;
    }
    FS_UNROLL
    for (int i = 0; i < kHeld + kRows; ++i) {
      clear_if(i < kHeld ? i / kRows < scattered.chunks : scattered.tail, scattered.places[i / 2],
               i % 2);
    }
    team_.sync();
  }
  __device__ __forceinline__ void clear() {
    FS_NO_UNROLL
    for (uint32_t i = team_.lane * 16; i < Shape::kTileBytes; i += kStride * 16) {
      store_shared(team_.tile + i, make_uint4(0, 0, 0, 0));
    }
    team_.sync();
  }

 private:
  template <int... i>
  __device__ __forceinline__ void load_chunks(const uint32_t* mine, int chunks,
                                              std::integer_sequence<int, i...>) {
    (load_streaming_if<i * kStride>(i / kRows < chunks, mine, words_[i]), ...);
  }

  // Words in registers by number, the tail after the others.
  __device__ __forceinline__ uint32_t word(int i) const {
    return i < kHeld ? words_[i] : tail_[i - kHeld < kRows ? i - kHeld : 0];
  }

  __device__ __forceinline__ void scatter_if(bool condition, uint32_t word) {
    store_shared_same_if(condition, dp2a_lo(word, 0x0002, team_.tile), bits_of(word));
  }
  // Clears one of two locations, number `which`.
  __device__ __forceinline__ void clear_if(bool condition, uint32_t places, int which) {
    store_shared_same_if(condition, dp2a_lo(places, which ? 0x0200 : 0x0002, team_.tile), 0);
  }

  const Words& weight_;
  const linear::Team<Shape>
      team_;                // a copy: a reference to the block's would keep it out of registers
  const uint32_t offsets_;  // in shared memory

  int count_;  // words of the tile that was prefetched last; -1 after the team's last tile
  const uint32_t* tile_words_;
  uint32_t words_[kHeld] = {}, tail_[kRows] = {};
};

}  // namespace flashsparse::tiled_csl
