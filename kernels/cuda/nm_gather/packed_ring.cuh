// SPDX-License-Identifier: Apache-2.0
// The ring of packed x in shared memory, between producer and consumer warps. A stage is full when
// the copies of the warp that packs it have landed and are visible to wgmma, and empty when no
// wgmma reads it any more.
#pragma once
#include "cuda/nm_gather/packed_shape.h"

namespace flashsparse::nm_gather {

// A position in the ring, and the parity of its phase.
template <class Shape>
class RingPlace {
 public:
  __device__ __forceinline__ explicit RingPlace(uint32_t shared) : shared_(shared) {}

  __device__ __forceinline__ uint32_t begin() const {
    return shared_ + stage_ * Shape::kStageBytes;
  }
  __device__ __forceinline__ uint32_t full() const {
    return shared_ + Shape::kFull + stage_ * kMbarrierBytes;
  }
  __device__ __forceinline__ uint32_t empty() const {
    return shared_ + Shape::kEmpty + stage_ * kMbarrierBytes;
  }
  __device__ __forceinline__ uint32_t parity() const { return parity_; }

  // Moves on by `stages`, at most kStages.
  __device__ __forceinline__ void move(uint32_t stages = 1) {
    stage_ += stages;
    if (stage_ >= Shape::kStages) {
      stage_ -= Shape::kStages;
      parity_ ^= 1;
    }
  }

 private:
  const uint32_t shared_;
  uint32_t stage_ = 0, parity_ = 0;
};

// Called by one thread; a block barrier must follow.
template <class Shape>
__device__ __forceinline__ void init_ring(uint32_t shared) {
  constexpr int kWarps = 4;  // of a consumer warpgroup, one arrival each
  RingPlace<Shape> place(shared);
  FS_NO_UNROLL
  for (int i = 0; i < Shape::kStages; ++i) {
    mbarrier_init(place.full(), 1);
    mbarrier_init(place.empty(), Shape::kConsumers * kWarps);
    place.move();
  }
}

}  // namespace flashsparse::nm_gather
