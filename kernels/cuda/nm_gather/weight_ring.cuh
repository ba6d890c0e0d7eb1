// SPDX-License-Identifier: Apache-2.0
// A warp's own ring of weights in shared memory, with kStages pairs of steps in flight. Each lane
// copies what it will read itself, so no lane waits for another.
#pragma once
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "cuda/nm_gather/linear_shape.h"

namespace flashsparse::nm_gather {

template <class Shape>
class WeightRing {
 public:
  // For the pairs `first`, first + stride, ... of a unit of rows.
  __device__ __forceinline__ WeightRing(const Weight& weight, int unit, int first, int stride,
                                        uint32_t shared, int lane)
      : stride_(stride), begin_(shared), stage_(shared), lane_(lane) {
    const int64_t values = (int64_t{unit} * weight.pairs + first) * Shape::kPairVectors;
    const int64_t words = (int64_t{unit / weight.group_units} * weight.pairs + first) * kWords;
    values_ = weight.values + values + lane;
    index_ = weight.index + words + lane / 4;
    policy_ = evict_first_policy();
  }

  // The initial copies, to stages [begin, end). `pairs`: all that the ring will hold, over time.
  template <int begin, int end>
  __device__ __forceinline__ void fill(int pairs) {
    FS_UNROLL
    for (int i = begin; i < end; ++i) refill(i < pairs);
  }

  // Waits for the next pair.
  __device__ __forceinline__ void wait() { copy_async_wait<Shape::kStages - 1>(); }

  __device__ __forceinline__ uint4 values(int vector) const {
    return load_shared<uint4>(stage_ + (vector * 32 + lane_) * uint32_t{sizeof(uint4)});
  }
  // Scales of groups for the lane's rows: those of fragment i in word i.
  __device__ __forceinline__ uint4 scales() const { return values(Shape::kVectors); }
  // The index byte of the lane's entry.
  __device__ __forceinline__ uint32_t byte() const {
    return load_shared<uint32_t>(index_place()) >> lane_ % 4 * 8 & 0xff;
  }

  // The current pair has been read: copies the next one to its stage if there are `more`, and moves
  // to the next stage. Always commits a group of copies, which `wait` counts.
  __device__ __forceinline__ void refill(bool more) {
    if (more) {
      FS_UNROLL
      for (int i = 0; i < Shape::kVectors; ++i) {
        copy_async_hinted(stage_ + (i * 32 + lane_) * uint32_t{sizeof(uint4)}, values_ + i * 32,
                          policy_);
      }
      if constexpr (Shape::kStageVectors > Shape::kVectors) {
        copy_async_hinted(stage_ + (Shape::kVectors * 32 + lane_) * uint32_t{sizeof(uint4)},
                          values_ + Shape::kVectors * 32 - lane_ + lane_ / 4, policy_);
      }
      copy_async<4>(index_place(), index_, true);
      values_ += stride_ * Shape::kPairVectors;
      index_ += stride_ * kWords;
    }
    copy_async_commit();
    stage_ += Shape::kStageBytes;
    if (stage_ == begin_ + Shape::kRingBytes) stage_ = begin_;
  }

 private:
  static constexpr int kWords = kPair / 4;  // of the index, for a pair

  __device__ __forceinline__ uint32_t index_place() const {
    return stage_ + Shape::kIndexAt + lane_ * uint32_t{sizeof(uint32_t)};
  }

  const uint4* values_;
  const uint32_t* index_;
  uint64_t policy_;
  const int stride_;
  const uint32_t begin_;
  uint32_t stage_;
  const int lane_;
};

}  // namespace flashsparse::nm_gather
