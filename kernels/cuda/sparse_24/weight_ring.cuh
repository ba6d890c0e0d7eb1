// SPDX-License-Identifier: Apache-2.0
// A warp's units on their way: a ring in shared memory, which the warp has to itself. A lane copies
// the bytes that it will read, so that no lane waits for another.
#pragma once
#include "common/mbarrier.cuh"
#include "common/memory.cuh"
#include "cuda/sparse_24/linear_arguments.h"
#include "cuda/sparse_24/steps.cuh"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

template <class Shape>
class WeightRing {
 public:
  // `ring` and `barriers` are the warp's; row_warp and column_warp its place in the block.
  __device__ __forceinline__ WeightRing(const Arguments& a, const Cut& cut, const Steps& steps,
                                        int row_warp, int column_warp, uint32_t ring,
                                        uint32_t barriers)
      : a_(a),
        cut_(cut),
        row_warp_(row_warp),
        column_warp_(column_warp),
        ring_(ring + threadIdx.x % 32 * kLaneBytes),
        barriers_(barriers),
        policy_(once_policy()),
        next_(steps) {
    seek();
  }

  // One lane's part; a barrier of the block follows.
  static __device__ __forceinline__ void init(const Cut& cut, uint32_t barriers) {
    for (int i = 0; i < cut.weight_stages; ++i) mbarrier_init(barriers + i * kMbarrierBytes, 32);
  }

  // Starts the copies of the next step, into the stage that was read last.
  __device__ __forceinline__ void refill() {
    if (next_.ended()) return;
    const uint32_t to = ring_ + filled_ * kStage;
    if (next_.column(cut_) + column_warp_ < unit_cols(a_.cols)) {
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        FS_UNROLL
        for (int i = 0; i < kUnitBytes / kStepBytes; ++i) {
          copy_async_once(to + m * kUnitBytes + i * kStepBytes, from_[m] + i * kStepBytes, policy_);
        }
        from_[m] += cut_.column_warps * kUnitBytes;
      }
    }
    mbarrier_arrive_after_copies(barriers_ + filled_ * kMbarrierBytes);
    if (++filled_ == cut_.weight_stages) filled_ = 0;
    if (next_.advance()) seek();
  }

  // Waits for the step that comes now; returns where this lane's bytes of its first unit are.
  __device__ __forceinline__ uint32_t wait() const {
    mbarrier_wait(barriers_ + read_ * kMbarrierBytes, parity_);
    return ring_ + read_ * kStage;
  }
  __device__ __forceinline__ void advance() {
    if (++read_ < cut_.weight_stages) return;
    read_ = 0;
    parity_ ^= 1;
  }

 private:
  static constexpr uint32_t kStage = Shape::kRowUnits * kUnitBytes;

  // Rows of units past the last one are the last one again: they are multiplied, and not stored.
  __device__ __forceinline__ void seek() {
    const int64_t across = unit_cols(a_.cols), last = unit_rows(a_.rows) - 1;
    const int row = (next_.set() * cut_.row_warps + row_warp_) * Shape::kRowUnits;
    const int column = next_.column(cut_) + column_warp_;
    const auto* const units = reinterpret_cast<const unsigned char*>(a_.units);
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      const int64_t unit = min(int64_t{row + m}, last) * across + column;
      from_[m] = units + unit * kUnitBytes + threadIdx.x % 32 * kLaneBytes;
    }
  }

  const Arguments& a_;
  const Cut& cut_;
  const int row_warp_, column_warp_;
  const uint32_t ring_, barriers_;
  const uint64_t policy_;
  Steps next_;                                   // to copy
  const unsigned char* from_[Shape::kRowUnits];  // its bytes of this lane
  int filled_ = 0, read_ = 0;                    // stages: the next to fill, and to read
  uint32_t parity_ = 0;
};

}  // namespace flashsparse::sparse_24
