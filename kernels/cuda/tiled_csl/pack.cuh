// SPDX-License-Identifier: Apache-2.0
// Packs a dense weight to Tiled-CSL on the GPU, in the canonical order of formats/tiled_csl.h: bit
// for bit the words of the CPU's packer (cpu/tiled_csl/order.cpp). count_kernel writes the number
// of words of each tile, offsets.cuh makes the prefix sum, and pack_kernel writes the words.
//
// A row of a tile is 32 pairs of elements, one in each bank of shared memory. A warp processes one
// row at a time, lane b the pair in bank b. So the queues of a bank are filled by one lane of each
// warp, which only need to know how many words the warps before have, and all 32 lanes always
// access 32 different banks.
#pragma once
#include "cuda/shared/lanes.cuh"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

inline constexpr int kPackWarps = 8;
inline constexpr int kPackThreads = kPackWarps * kBanks;
inline constexpr int kWarpRows = kTileRows / kPackWarps;  // consecutive rows of a tile, for a warp

static_assert(kBanks == kLanes && kTileCols == 2 * kBanks, "a row has one pair of elements a bank");
static_assert(kWarpRows % 8 == 0, "every warp's rows begin with row & 7 == 0");

// pairs[i]: the two elements of this warp's row i in bank `lane`, the lower column in the lower
// half; 0 outside of the weight.
__device__ __forceinline__ void load_pairs(const uint16_t* __restrict__ weight, int64_t rows,
                                           int64_t cols, int warp, int lane,
                                           uint32_t (&pairs)[kWarpRows]) {
  const uint32_t across = static_cast<uint32_t>(tile_cols(cols));
  const int64_t first_row =
      static_cast<int64_t>(blockIdx.x / across) * kTileRows + warp * kWarpRows;
  const int64_t first_col = static_cast<int64_t>(blockIdx.x % across) * kTileCols;
  // Of this warp's part of the tile; below 1 if all of it is outside of the weight.
  const int rows_here = static_cast<int>(min(rows - first_row, static_cast<int64_t>(kWarpRows)));
  const int cols_here = static_cast<int>(min(cols - first_col, static_cast<int64_t>(kTileCols)));
  const uint16_t* row = weight + first_row * cols + first_col;
  const bool whole_pairs = cols % 2 == 0 && reinterpret_cast<uintptr_t>(weight) % 4 == 0;
  FS_UNROLL
  for (int i = 0; i < kWarpRows; ++i, row += cols) {
    const int col = (i % 8 * 8) ^ (2 * lane);  // of the pair in bank `lane`
    const bool low = i < rows_here && col < cols_here, high = low && col + 1 < cols_here;
    pairs[i] = 0;
    if (whole_pairs) {
      if (low) pairs[i] = *reinterpret_cast<const uint32_t*>(row + col);
    } else {
      if (low) pairs[i] = row[col];
      if (high) pairs[i] |= static_cast<uint32_t>(row[col + 1]) << 16;
    }
  }
}

// Which elements are nonzero: bit i for the lower one of pairs[i], bit 16 + i for the upper one.
__device__ __forceinline__ uint32_t kept_of(const uint32_t (&pairs)[kWarpRows]) {
  static_assert(kWarpRows == 16, "a half of the result has 16 bits");
  uint32_t kept = 0;
  FS_UNROLL
  for (int i = 0; i < kWarpRows; ++i) {
    // Adding 0x7fff carries into the sign bit for every magnitude but 0.
    const uint32_t carries = (pairs[i] & 0x7fff7fff) + 0x7fff7fff;
    kept |= carries >> (15 - i) & (0x00010001u << i);
  }
  return kept;
}

// Writes lengths[t] = words of tile t, padding included. Launch with gridDim.x = tile_rows(rows) *
// tile_cols(cols), blockDim.x = kPackThreads.
__global__ void __launch_bounds__(kPackThreads)
    count_kernel(const uint16_t* __restrict__ weight, int64_t rows, int64_t cols,
                 int32_t* __restrict__ lengths) {
  FS_SHARED(int, kept_of_warp, kPackWarps);
  const int warp = threadIdx.x / kBanks, lane = threadIdx.x % kBanks;
  uint32_t pairs[kWarpRows];
  load_pairs(weight, rows, cols, warp, lane, pairs);
  const int words = reduce_lanes(__popc(kept_of(pairs)), [](int a, int b) { return a + b; });
  if (lane == 0) kept_of_warp[warp] = words;
  __syncthreads();
  if (threadIdx.x == 0) {
    int sum = 0;
    for (int w = 0; w < kPackWarps; ++w) sum += kept_of_warp[w];
    lengths[blockIdx.x] = (sum + kWordAlignment - 1) / kWordAlignment * kWordAlignment;
  }
}

// The queues of a bank, held by a lane: queue[i] for i < singles, then both halves of each pair.
struct Bank {
  int singles, count;  // count = singles + 2 * pairs
};

// The `room` lanes of `among` with the largest `left` (below 512); with equal values, the lowest
// lanes.
__device__ __forceinline__ uint32_t fullest(uint32_t left, uint32_t among, int room, int lane) {
  if (room <= 0) return 0;
  if (__popc(among) <= room) return among;
  const LaneOrder order = order_of_lanes<9>(left, among);
  const int ahead = __popc(order.more | (order.equal & lanes_below(lane)));
  return __ballot_sync(kAllLanes, (among >> lane & 1) && ahead < room);
}

// Writes what remains after every bank has given its first `taken` words, and pads to `end` by
// repeating the last word. Called by one warp, lane b for bank b; queue[32 * i + b] is word i of
// bank b.
__device__ __forceinline__ void write_remaining(const uint32_t* queue, Bank bank, int taken,
                                                int lane, uint32_t* out, uint32_t* end) {
  // If the cut splits a pair, its upper half becomes a single.
  const int half = taken > bank.singles ? (taken - bank.singles) & 1 : 0;
  int single = taken, single_end = max(bank.singles, taken + half);
  int pair = single_end;  // the lower half of the next pair
  int left = bank.count - taken;
  int remaining = reduce_lanes(left, [](int a, int b) { return a + b; });
  if (remaining == 0) return;

  const uint32_t below = lanes_below(lane);
  uint32_t word = 0, joining = 0;
  while (remaining > 0) {
    int room = min(remaining, kBanks);
    remaining -= room;
    while (room > 0) {
      joining = fullest(left, __ballot_sync(kAllLanes, left > 0), room, lane);
      const int ones = __popc(joining);
      const uint32_t with_pair = __ballot_sync(kAllLanes, pair < bank.count);
      const uint32_t doubling = fullest(left, joining & with_pair, room - ones, lane);
      uint32_t* const place = out + __popc(joining & below) + __popc(doubling & below);
      if (doubling >> lane & 1) {
        word = queue[(pair + 1) * kBanks + lane];
        place[0] = queue[pair * kBanks + lane];
        place[1] = word;
        pair += 2;
        left -= 2;
      } else if (joining >> lane & 1) {
        if (single == single_end) {  // the upper half becomes a single
          single = pair;
          pair += 2;
          single_end = pair;
        }
        word = queue[single * kBanks + lane];
        place[0] = word;
        ++single;
        --left;
      }
      const int filled = ones + __popc(doubling);
      out += filled;
      room -= filled;
    }
  }
  if (lane == 31 - __clz(joining)) {
    while (out < end) *out++ = word;
  }
}

// Writes words[offsets[t]] to words[offsets[t + 1]] of every tile t. Launch with gridDim.x =
// tile_rows(rows) * tile_cols(cols), blockDim.x = kPackThreads. `words` is 16-byte aligned;
// `offsets` is the prefix sum of count_kernel's lengths for the same weight.
__global__ void __launch_bounds__(kPackThreads, 5)
    pack_kernel(const uint16_t* __restrict__ weight, int64_t rows, int64_t cols,
                const int32_t* __restrict__ offsets, uint32_t* __restrict__ words) {
  FS_SHARED(uint4, queue_vectors, kTileElements / 4);
  FS_SHARED(uint32_t, kept_of_warp, kPackThreads);  // singles | pairs << 16, by warp and bank
  uint32_t* const queue = reinterpret_cast<uint32_t*>(queue_vectors);
  uint32_t* const out = words + offsets[blockIdx.x];
  uint32_t* const end = words + offsets[blockIdx.x + 1];
  if (out == end) return;

  const int warp = threadIdx.x / kBanks, lane = threadIdx.x % kBanks;
  uint32_t pairs[kWarpRows];
  load_pairs(weight, rows, cols, warp, lane, pairs);
  const uint32_t kept = kept_of(pairs), low_kept = kept & 0xffff, high_kept = kept >> 16;
  const uint32_t singles = low_kept ^ high_kept, both = low_kept & high_kept;
  kept_of_warp[threadIdx.x] = __popc(singles) | __popc(both) << 16;
  __syncthreads();

  uint32_t before = 0, all = 0;
  FS_UNROLL
  for (int w = 0; w < kPackWarps; ++w) {
    const uint32_t there = kept_of_warp[w * kBanks + lane];
    before += w < warp ? there : 0;
    all += there;
  }
  Bank bank;
  bank.singles = static_cast<int>(all & 0xffff);
  bank.count = bank.singles + 2 * static_cast<int>(all >> 16);
  uint32_t* single = queue + (before & 0xffff) * kBanks + lane;
  uint32_t* pair = queue + (bank.singles + 2 * (before >> 16)) * kBanks + lane;
  FS_UNROLL
  for (int i = 0; i < kWarpRows; ++i) {
    const uint32_t place = (warp * kWarpRows + i) * kTileCols + 2 * lane;
    const uint32_t low = make_word(static_cast<uint16_t>(pairs[i]), place);
    const uint32_t high = make_word(static_cast<uint16_t>(pairs[i] >> 16), place + 1);
    if (singles >> i & 1) {
      *single = low_kept >> i & 1 ? low : high;
      single += kBanks;
    }
    if (both >> i & 1) {
      pair[0] = low;
      pair[kBanks] = high;
      pair += 2 * kBanks;
    }
  }
  __syncthreads();

  // As long as all banks have words, each gives one to every group of 32: the rows of the queues.
  const int full = reduce_lanes(bank.count, [](int a, int b) { return min(a, b); });
  for (int i = threadIdx.x; i < full * kBanks / 4; i += kPackThreads) {
    reinterpret_cast<uint4*>(out)[i] = queue_vectors[i];
  }
  // One warp writes the rest. Which one varies by block: warps of the same number, in the blocks of
  // a multiprocessor, share one of its four schedulers, which would get all of this work.
  const uint32_t chosen = blockIdx.x * 2654435769u >> 29;
  if (warp == static_cast<int>(chosen % kPackWarps)) {
    write_remaining(queue, bank, full, lane, out + full * kBanks, end);
  }
}

}  // namespace flashsparse::tiled_csl
