// SPDX-License-Identifier: Apache-2.0
// x of a cluster's steps: a ring of panels in the shared memory of each block, of 64 columns and
// all tokens of the tile. One thread of each block copies its share of a panel to all blocks, when
// the warps of all of them have released the stage.
#pragma once
#include "common/bulk_copy.cuh"
#include "common/cluster.cuh"
#include "common/tensor_map.cuh"
#include "cuda/mma_units/wgmma_shape.h"
#include "cuda/mma_units/wgmma_tiles.cuh"

namespace flashsparse::mma_units {

// A position in the ring, and the parity of the phase of its barriers.
template <class Shape>
class WgmmaX {
 public:
  __device__ __forceinline__ WgmmaX(const WgmmaArguments& a, uint32_t shared)
      : shared_(shared), stages_(a.stages / Shape::kStagePanels) {}

  // Called by one thread of each warp, which share the work, as each takes a thread some 50 ns; a
  // cluster barrier must follow.
  __device__ __forceinline__ void init(const WgmmaArguments& a, int warp) const {
    FS_NO_UNROLL
    for (int i = warp; i < stages_; i += Shape::kThreads / 32) {
      mbarrier_init(shared_ + i * kMbarrierBytes, 1);
      mbarrier_init(shared_ + (kMostXStages + i) * kMbarrierBytes, Shape::kWarps * a.down);
    }
    FS_NO_UNROLL
    for (int i = a.depth > 1 ? warp : Shape::kUnits; i < Shape::kUnits; i += Shape::kThreads / 32)
      mbarrier_init(sums(i), a.depth);
    mbarrier_init_done();
  }

  __device__ __forceinline__ uint32_t full() const { return shared_ + stage_ * kMbarrierBytes; }
  __device__ __forceinline__ uint32_t empty() const {
    return shared_ + (kMostXStages + stage_) * kMbarrierBytes;
  }
  // One of the stage's panels.
  __device__ __forceinline__ uint32_t panel(int part = 0) const {
    return shared_ + kBarrierBytes + (stage_ * Shape::kStagePanels + part) * Shape::kPanelBytes;
  }
  // The barrier at which the partial sums of one of the block's units arrive from those along K.
  __device__ __forceinline__ uint32_t sums(int unit) const {
    return shared_ + (2 * kMostXStages + unit) * kMbarrierBytes;
  }
  __device__ __forceinline__ uint32_t end() const {  // of all stages
    return shared_ + kBarrierBytes + stages_ * (Shape::kStagePanels * Shape::kPanelBytes);
  }
  __device__ __forceinline__ int stages() const { return stages_; }
  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ uint32_t parity() const { return parity_; }
  __device__ __forceinline__ void advance() {
    if (++stage_ < stages_) return;
    stage_ = 0;
    parity_ ^= 1;
  }
  // The warp is done with the panel that has this barrier: arrives in every block that copies to
  // it.
  __device__ __forceinline__ void release(const WgmmaArguments& a, uint32_t empty) const {
    __syncwarp();
    const int lane = threadIdx.x % 32;
    if (lane < a.down) mbarrier_release_in(lane * a.depth + WgmmaTiles::part(a), empty);
  }

 private:
  static constexpr uint32_t kBarrierBytes = kWgmmaBarriers;
  static_assert((2 * kMostXStages + Shape::kUnits) * kMbarrierBytes <= kBarrierBytes,
                "a barrier has its place");

  const uint32_t shared_;
  const int stages_;
  int stage_ = 0;
  uint32_t parity_ = 0;
};

// The producer thread, for steps of `panels` panels.
template <class Shape, int panels, class Tiles = WgmmaTiles, class Arguments = WgmmaArguments>
__device__ __forceinline__ void copy_x(const Arguments& a, const TensorMap& map, WgmmaX<Shape> x) {
  Tiles tiles(a);
  const int place = WgmmaTiles::place_down(a), share = Shape::kTokens / a.down;
  uint32_t all = 0;  // mask of the blocks that need the same x
  FS_NO_UNROLL
  for (int i = 0; i < a.down; ++i) all |= 1u << (i * a.depth + WgmmaTiles::part(a));
  if (a.down == 1) all = kThisBlock;
  int unused = x.stages();  // that have not been filled yet
  FS_NO_UNROLL
  for (; !tiles.ended(); tiles.advance()) {
    const int token = tiles.token_tile(tiles.tile()) * Shape::kTokens + place * share;
    FS_NO_UNROLL
    for (int panel = 0; panel < panels; panel += Shape::kStagePanels) {
      if (unused > 0) {
        --unused;
      } else {
        mbarrier_wait(x.empty(), x.parity() ^ 1);
      }
      detail::mbarrier_arrive_expecting(x.full(), Shape::kStagePanels * Shape::kPanelBytes);
      FS_UNROLL
      for (int part = 0; part < Shape::kStagePanels; ++part) {
        copy_tile(x.panel(part) + place * share * 128, map, token,
                  (tiles.column() * panels + panel + part) * kTileCols, x.full(),
                  static_cast<uint16_t>(all));
      }
      x.advance();
    }
  }
}

}  // namespace flashsparse::mma_units
