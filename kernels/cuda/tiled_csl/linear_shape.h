// SPDX-License-Identifier: Apache-2.0
// What the stream-K kernel is compiled for, and the layout of a block's shared memory.
#pragma once
#include <cstdint>

#include "cuda/tiled_csl/stream_k_plan.h"

namespace flashsparse::linear {

template <int kTokens_,     // of y at most: 8, 16, 32, 64 or 128
          bool kHopper_,    // for that architecture, or for all others
          bool kWgmma_,     // Hopper's wgmma (teams of 4 warps), or the mma of every architecture
          int kTeamWarps_,  // warps that share a tile: 1, 2 or 4
          int kWarps_,      // of a block
          int kBlocks_>     // blocks on a multiprocessor, which bounds the registers
struct Shape {
  static constexpr int kTokens = kTokens_, kTeamWarps = kTeamWarps_;
  static constexpr int kWarps = kWarps_, kBlocks = kBlocks_;
  static constexpr bool kHopper = kHopper_, kWgmma = kWgmma_;
  static constexpr int kThreads = kWarps * 32, kTeams = kWarps / kTeamWarps;
  static constexpr int kTeamThreads = kTeamWarps * 32;

  // Shared memory: a dense tile for each team, x of each team's tile and of its next one,
  // kSharedBytes of the tile source, and two flags of the block.
  static constexpr uint32_t kTileBytes = kTileRows * kTileCols * sizeof(uint16_t);
  static constexpr uint32_t kXBytes = kTokens * kTileCols * sizeof(uint16_t);
  static constexpr uint32_t kX = kTeams * kTileBytes;
  static constexpr uint32_t kSource = kX + kTeams * 2 * kXBytes;
  static constexpr uint32_t kFlagBytes = 2 * sizeof(uint32_t);

  static constexpr int kSlots = 2 + kTeams;  // of `partials`, for a block
  // Tokens whose sums fit into the team's tile at a time.
  static constexpr int kRoundTokens = kTokens < 32 ? kTokens : 32;
  static_assert(kWarps % kTeamWarps == 0 && (!kWgmma || (kHopper && kTeamWarps == 4)));
  static_assert(kRoundTokens * kTileRows * sizeof(float) <= kTileBytes);
};

}  // namespace flashsparse::linear
