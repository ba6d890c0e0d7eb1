// SPDX-License-Identifier: Apache-2.0
// How the wgmma kernels divide the work.
//
// Each warpgroup of a block multiplies 64 rows. A cluster has down x depth blocks. The `down`
// blocks along M multiply different rows by the same tokens, of which each copies its share to all
// of them. The `depth` blocks along K multiply different columns, and add up their accumulators in
// shared memory. A tile is what a cluster multiplies at once; a block's steps of it are units of
// 256 columns. The steps of all tiles, those of the same rows one after the other, form one
// sequence, of which every cluster takes an equal range: exactly one tile if depth > 1.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::mma_units {

struct WgmmaShapeInfo {
  int tokens, groups;  // of a tile; consumer warpgroups
};

// Registers of a consumer thread. With the 24 or 32 of the producer's threads they are, in all,
// those that the block is launched with: 168, 128 or 96 a thread.
constexpr int wgmma_registers(int groups) { return groups == 2 ? 240 : groups == 3 ? 160 : 112; }

inline constexpr int kGroupRows = 64;    // of a warpgroup
inline constexpr int kPanelBytes = 128;  // of a stage of x, for each token
inline constexpr int kMostCluster = 8;   // blocks
inline constexpr int kMostXStages = 16;

// Whether the blocks of a cluster, along M or along K, can share the tokens of a tile in groups of
// 8: the granularity of the hardware's swizzle, and of the exchange of accumulators.
constexpr bool wgmma_shares(int tokens, int blocks) { return tokens / 8 % blocks == 0; }

// Groups of 8 tokens whose partial sums a warp loads at once: a divisor of those of a tile, at most
// `most`.
constexpr int wgmma_joined(int tokens, int most) {
  return wgmma_shares(tokens, most) ? most : wgmma_joined(tokens, most - 1);
}

// Dynamic shared memory of a block begins with barriers and the stages of x.
inline constexpr int64_t kWgmmaBarriers = 1024;
constexpr int64_t wgmma_stage_bytes(int tokens) { return int64_t{tokens} * kPanelBytes; }

// Panels of x that arrive and are released together: fewer waits, at which the warps of a block
// fall into step. With 2 and up to 128 tokens, 2:4 with fp8 values took 0.86 to 0.95 of the time on
// an H200; with 4 as long, and with 2 of 256 tokens, of which shared memory holds 7, up to 1.07.
FS_HOST_DEVICE constexpr int wgmma_stage_panels(int tokens) { return tokens <= 128 ? 2 : 1; }

}  // namespace flashsparse::mma_units
