// SPDX-License-Identifier: Apache-2.0
// A team: neighbouring warps of a block that share one dense tile of the weight in shared memory.
#pragma once
#include "common/device.cuh"
#include "common/warp.cuh"
#include "cuda/tiled_csl/linear_shape.h"

namespace flashsparse::linear {

template <class Shape>
struct Team {
  int number;     // of the block's teams, the same in every lane of a warp
  int lane;       // of this thread, among the team's
  uint32_t tile;  // the team's tile in shared memory

  // Shuffled from lane 0, so that the compiler knows `number` to be uniform in a warp.
  __device__ __forceinline__ explicit Team(uint32_t shared)
      : number(__shfl_sync(~0u, static_cast<int>(threadIdx.x / Shape::kTeamThreads), 0)),
        lane(threadIdx.x % Shape::kTeamThreads),
        tile(shared + number * Shape::kTileBytes) {}

  __device__ __forceinline__ void sync() const {
    if constexpr (Shape::kTeamWarps == 1) {
      __syncwarp();
    } else {
      sync_threads_of(1 + number, Shape::kTeamThreads);
    }
  }
};

// At the end of a row, sums are stored in a team's tile as [token][row]. Rows are swizzled so that
// both the stores (tokens 0, 2, 4, 6 of 8 rows, or 8 tokens of 8 rows) and the loads (four rows of
// one token a lane) spread over the banks.
__device__ __forceinline__ uint32_t sum_place(int token, int row) {
  return (token * kTileRows + (row ^ token % 8 * 4)) * sizeof(float);
}

}  // namespace flashsparse::linear
