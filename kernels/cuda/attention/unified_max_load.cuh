// SPDX-License-Identifier: Apache-2.0
// Copies one warp's tiles of keys and values to shared memory, from a contiguous or a paged cache,
// with masked positions and positions past the end of the sequence as zeros.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/registers.cuh"
#include "cuda/attention/unified_max_arguments.h"
#include "cuda/attention/unified_max_plan.h"

namespace flashsparse::unified_max {

inline constexpr uint32_t kAllPositions = 0xffff;  // of a tile, one bit each

// The order of a tile's 16-byte chunks in shared memory: the eight rows of an ldmatrix must lie in
// different banks. Chunk c of row r is stored in position c ^ swizzle(r): it moves among kSwizzled
// chunks, the largest power of two that divides a row, at most 8.
template <uint32_t kRowBytes>
struct TileOrder {
  static constexpr int kChunks = kRowBytes / 16;  // of a row
  static constexpr int kPower = kChunks & -kChunks, kSwizzled = kPower < 8 ? kPower : 8;

  // Offset in bytes from the tile's first key or value.
  static __device__ __forceinline__ uint32_t place(int row, int chunk) {
    const int swizzle = row / (8 / kSwizzled) % kSwizzled;
    return row * kRowBytes + (chunk ^ swizzle) * 16;
  }
};

template <uint32_t kRowBytes>
class TileLoader {
 public:
  __device__ __forceinline__ TileLoader(const DecodeArguments& a, uint32_t ring, int sequence,
                                        int kv_head)
      : a_(a),
        sequence_(sequence),
        lane_(threadIdx.x % 32),
        key_(keep(first_chunk(a.key, a.key_strides, kv_head))),
        value_(keep(first_chunk(a.value, a.value_strides, kv_head))),
        ring_(keep(ring)) {
    FS_UNROLL
    for (int i = 0; i < kPlaces; ++i) to_[i] = keep(ring + place(i * kRows));
  }

  // Sets which positions of the sequence to attend to.
  __device__ __forceinline__ void set_positions(int start, int length) {
    start_ = start;
    length_ = length;
  }

  // Sets the tiles that load_next will load, one after the other: begin, begin + step, ... below
  // end.
  __device__ __forceinline__ void begin(int begin, int end, int step) {
    next_ = begin;
    end_ = end;
    step_ = step;
    pages_ = sequence_;
    lookup_ = 0;
    tile_in_page_ = next_ % a_.page_tiles;
    looked_at_ = 0;
    look_up();
  }

  // Starts to copy the next tile to this slot of the ring; nothing after the last tile. Positions
  // that are not attended to become zero, and their memory is not read.
  __device__ __forceinline__ void load_next(uint32_t slot) {
    const uint32_t here = next_ < end_ ? positions_of_next() : 0;
    looked_at_ = looked_at_ << kTile | here;
    const uint32_t page = __shfl_sync(~0u, pages_, lookup_);
    const int row = lane_ / kChunks;
    if (here != 0 && row < kRows) {
      const unsigned char* key = key_ + tile_offset(a_.key_strides, page);
      const unsigned char* value = value_ + tile_offset(a_.value_strides, page);
      const uint32_t key_step = kRows * 16 * a_.key_strides.position;
      const uint32_t value_step = kRows * 16 * a_.value_strides.position;
      if (here == kAllPositions) {
        FS_UNROLL
        for (int i = 0; i * kRows < kTile; ++i) {
          if (kTile % kRows == 0 || row + i * kRows < kTile) {
            const uint32_t to = to_[i % kPlaces] + slot + i / kPlaces * kPlaces * kRows * kRowBytes;
            copy_async<16>(to, key, true);
            copy_async<16>(to + kValues, value, true);
          }
          key += key_step;
          value += value_step;
        }
      } else {
        FS_NO_UNROLL
        for (int r = row; r < kTile; r += kRows) {
          const uint32_t to = ring_ + slot + place(r - row);
          copy_async<16>(to, key, here >> r & 1);
          copy_async<16>(to + kValues, value, here >> r & 1);
          key += key_step;
          value += value_step;
        }
      }
    }
    next_ += step_;
    tile_in_page_ += step_;
    while (tile_in_page_ >= a_.page_tiles) tile_in_page_ -= a_.page_tiles;
    lookup_ = (lookup_ + 1) % 32;
    look_up();
  }

  // The positions to attend to in the tile that was loaded `turns` calls before the latest, at most
  // 3.
  __device__ __forceinline__ uint32_t looked_at(int turns) const {
    return looked_at_ >> turns * kTile & kAllPositions;
  }

 private:
  using Order = TileOrder<kRowBytes>;
  static constexpr int kChunks = Order::kChunks;
  static constexpr int kRows = 32 / kChunks;  // that a warp copies at once, one chunk a lane
  static constexpr uint32_t kValues = kTile * kRowBytes;
  // The order of chunks repeats every 8 rows.
  static constexpr int kPlaces = 8 % kRows == 0 ? 8 / kRows : (kTile + kRows - 1) / kRows;

  // Offset of this lane's chunk in the row that is `rows` after its first one.
  __device__ __forceinline__ uint32_t place(int rows) const {
    return Order::place(lane_ / kChunks + rows, lane_ % kChunks);
  }

  __device__ __forceinline__ uint32_t positions_of_next() const {
    const int first = next_ * kTile, beyond = first + kTile - length_;
    uint32_t bits = kAllPositions;
    if (first < start_) bits &= kAllPositions << (start_ - first);
    if (beyond > 0) bits &= kAllPositions >> beyond;
    if (a_.mask) bits &= __ballot_sync(~0u, allowed_);
    return bits;
  }

  // Looks up what loading tile `next_` will need: ahead of time, as this is a load itself. Page
  // numbers are loaded for the next 32 tiles, one for each lane: if each were loaded alone, filling
  // the ring would wait for one after the other.
  __device__ __forceinline__ void look_up() {
    if (next_ >= end_) return;
    if (a_.table && lookup_ == 0) {
      const int tile = min(next_ + lane_ * step_, end_ - 1);
      const int64_t entry =
          static_cast<int64_t>(sequence_) * a_.table_stride + tile / a_.page_tiles;
      pages_ = min(static_cast<uint32_t>(load_global(a_.table + entry)), a_.pages - 1);
    }
    if (a_.mask) {
      const int position = next_ * kTile + lane_ % kTile;
      allowed_ =
          position < length_ && load_global(a_.mask + (sequence_ * a_.mask_stride + position)) != 0;
    }
  }

  // The first chunk that this lane copies from page 0's first tile, and the offset of a tile from
  // there.
  __device__ __forceinline__ const unsigned char* first_chunk(const void* cache,
                                                              const Strides& strides,
                                                              int kv_head) const {
    const uint64_t chunk = uint64_t{strides.head} * kv_head +
                           uint64_t{strides.position} * (lane_ / kChunks) + lane_ % kChunks;
    return static_cast<const unsigned char*>(cache) + chunk * 16;
  }
  __device__ __forceinline__ uint64_t tile_offset(const Strides& strides, uint32_t page) const {
    return (uint64_t{strides.page} * page + uint64_t{kTile * strides.position} * tile_in_page_) *
           16;
  }

  const DecodeArguments& a_;
  const int sequence_, lane_;
  const unsigned char *const key_, *const value_;
  const uint32_t ring_;
  uint32_t to_[kPlaces];  // in the ring's first slot

  int start_, length_;
  int end_, step_;
  // The tile that load_next will load, and what has been looked up for it.
  int next_, lookup_;              // index of the tile in those whose pages were looked up: 0 to 31
  uint32_t pages_, tile_in_page_;  // pages_: of the tile with this lane's index
  bool allowed_ = false;           // position next_ * 16 + lane % 16
  uint64_t looked_at_;             // of the last four tiles, 16 bits each, the latest lowest
};

}  // namespace flashsparse::unified_max
