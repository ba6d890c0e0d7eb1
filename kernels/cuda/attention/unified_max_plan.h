// SPDX-License-Identifier: Apache-2.0
// How decode attention divides its work: decided on the host from sizes alone, so that a CUDA graph
// can hold the decision. Only the device knows the true lengths; it divides each sequence into as
// many splits as pay, at most as many as were launched.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/host_device.h"
#include "cuda/shared/gpu.h"

namespace flashsparse::unified_max {

inline constexpr int kTile = 16;         // positions, the M of mma
inline constexpr int kHeads = 8;         // query heads, the N of mma
inline constexpr int kMaxWarps = 8;      // of a block that has an SM to itself
inline constexpr int kSharingWarps = 4;  // of a block that shares it

// The fewest tiles of a split, by those of its sequence. A split costs time to combine: up to 16 of
// them pay with 16 tiles each or more, further ones with 64.
inline constexpr int kMaxSplits = 32;
FS_HOST_DEVICE constexpr int least_tiles(int tiles) {
  const int of_16 = tiles / 16 + (tiles % 16 != 0);
  return of_16 < 16 ? 16 : of_16 > 64 ? 64 : of_16;
}

// The compiled shapes: X(head_dim, tiles of 8 query heads of a group). (16 heads of 256 do not fit
// in registers.)
#define FS_DECODE_SHAPES(X) \
  X(64, 1) X(80, 1) X(96, 1) X(128, 1) X(256, 1) X(64, 2) X(80, 2) X(96, 2) X(128, 2)
constexpr int head_tiles_of_block(int head_dim, int64_t group) {
  return group > kHeads && head_dim <= 128 ? 2 : 1;
}

// A tile's keys, then its values, one row per position, without padding: an asynchronous copy
// writes 128 bytes at a time only if they are 128 aligned bytes of shared memory as well. (Padded
// rows were read at 4.2 TB/s on an H200, these at 4.5: benchmarks/gpu/copies.cu.)
constexpr uint32_t row_bytes(int head_dim, int element_bytes) { return head_dim * element_bytes; }
constexpr uint32_t tile_bytes(int head_dim, int element_bytes) {
  return 2 * kTile * row_bytes(head_dim, element_bytes);
}
// Tiles of a warp that are in shared memory or in flight.
constexpr int stages(int head_dim, int element_bytes) {
  if (element_bytes == 1) return head_dim <= 128 ? 4 : 3;
  return head_dim <= 80 ? 4 : head_dim <= 128 ? 3 : 2;
}
constexpr uint32_t ring_bytes(int head_dim, int element_bytes) {
  return stages(head_dim, element_bytes) * tile_bytes(head_dim, element_bytes);
}
// Blocks of kSharingWarps that the registers of an SM hold.
constexpr int resident_blocks(int head_dim) { return head_dim <= 128 ? 2 : 1; }

// The partial result of a split for one head: sums, reference and norm (unified_max_join.cuh).
constexpr int record_floats(int head_dim) { return head_dim + 4; }
// Where splits are combined in shared memory, after the number of blocks that had arrived.
inline constexpr uint32_t kSplitsAt = 16;

struct Problem {
  int64_t sequences, kv_heads, group;  // group: query heads of a kv head
  int64_t positions;                   // of the longest sequence
  int head_dim;
  int element_bytes = 2;  // of the cache: 1 of fp8

  // Query heads of a block, and the blocks that a group needs.
  int block_heads() const { return kHeads * head_tiles_of_block(head_dim, group); }
  int64_t group_blocks() const { return (group + block_heads() - 1) / block_heads(); }
  // Independent blocks; the splits of one are combined.
  int64_t rows() const { return sequences * kv_heads * group_blocks(); }
  // Floats of the partial result of one split.
  int record_floats() const { return block_heads() * unified_max::record_floats(head_dim); }
};

struct DecodePlan {
  int warps, splits;

  // The rings of its warps, whose memory a row's last block reuses to combine the splits.
  uint32_t shared_bytes(const Problem& problem) const {
    return std::max<uint32_t>(warps * ring_bytes(problem.head_dim, problem.element_bytes),
                              kSplitsAt + splits * problem.record_floats() * sizeof(float));
  }
  int64_t partial_floats(const Problem& problem) const {
    return splits > 1 ? problem.rows() * splits * problem.record_floats() : 0;
  }
};

DecodePlan plan_decode(const Problem& problem, const Gpu& gpu);

}  // namespace flashsparse::unified_max
