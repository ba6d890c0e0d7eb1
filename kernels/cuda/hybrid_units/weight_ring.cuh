// SPDX-License-Identifier: Apache-2.0
// A warp's own ring of units of both kinds in shared memory. Each lane copies the bytes that it
// will read, except for group scales, which all lanes read.
#pragma once
#include "common/memory.cuh"
#include "cuda/hybrid_units/linear_arguments.h"
#include "cuda/hybrid_units/linear_shared.h"
#include "cuda/mma_units/steps.cuh"

namespace flashsparse::hybrid_units {

// The units of a step, as a lane reads them.
struct StepUnits {
  uint32_t place;  // shared address of its bytes of the first one
  uint32_t dense;  // bit m: whether unit m is

  __device__ __forceinline__ bool is_dense(int unit) const { return dense >> unit & 1; }
};

template <class Shape, class Values>
class WeightRing {
 public:
  static __device__ __forceinline__ constexpr uint32_t bytes(int stages) {
    return ring_bytes(kLayout, kUnits, stages);
  }

  // `ring` is the warp's own; row_warp and column_warp are its position in the block.
  __device__ __forceinline__ WeightRing(const Arguments& a, const mma_units::Cut& cut,
                                        const mma_units::Steps& steps, int row_warp,
                                        int column_warp, uint32_t ring)
      : a_(a),
        cut_(cut),
        row_warp_(row_warp),
        column_warp_(column_warp),
        ring_(ring + threadIdx.x % 32 * kLaneBytes),
        policy_(evict_first_policy()),
        left_(steps.left()),
        set_(steps.set()),
        in_set_(steps.in_set()) {
    seek();
    look_ahead();
  }

  // Starts the copies of the next step, into the stage that was read last: one group of the
  // thread's copies, empty past the end.
  __device__ __forceinline__ void refill() {
    if (left_ > 0) copy_step();
    copy_async_commit();
  }

  // Waits for the current step.
  __device__ __forceinline__ StepUnits wait() const {
    copy_async_wait(cut_.weight_stages - 1);
    if (kScaleBytes > 0) __syncwarp();
    return {ring_ + read_ * kStage, dense_ >> read_ * kUnits};
  }
  __device__ __forceinline__ void advance() {
    if (++read_ == cut_.weight_stages) read_ = 0;
  }

 private:
  using Place = UnitPlace<Values>;
  static constexpr UnitLayout kLayout = Values::kLayout;
  static constexpr int kUnits = Shape::kRowUnits, kScaleBytes = scale_bytes(kLayout);
  static constexpr uint32_t kStage = kUnits * Place::kBytes, kMask = (1u << kUnits) - 1;

  __device__ __forceinline__ bool is_inside() const {
    return in_set_ * cut_.column_warps + column_warp_ < cut_.unit_cols;
  }

  __device__ __forceinline__ void copy_step() {
    --left_;
    if (is_inside()) {
      uint32_t kinds = 0;
      FS_UNROLL
      for (int m = 0; m < kUnits; ++m) {
        const int32_t begin = __shfl_sync(~0u, ahead_, 2 * m);
        const int32_t end = __shfl_sync(~0u, ahead_, 2 * m + 1);
        const bool dense = is_dense(kLayout, begin, end);
        copy_unit(ring_ + filled_ * kStage + m * Place::kBytes, begin, dense);
        kinds |= static_cast<uint32_t>(dense) << m;
      }
      const int shift = filled_ * kUnits;
      dense_ = (dense_ & ~(kMask << shift)) | kinds << shift;
    }
    if (++filled_ == cut_.weight_stages) filled_ = 0;
    offsets_ += cut_.column_warps;
    if (++in_set_ == cut_.set_steps) {
      in_set_ = 0;
      ++set_;
      seek();
    }
    look_ahead();
  }

  __device__ __forceinline__ void copy_unit(uint32_t unit, int32_t begin, bool dense) const {
    constexpr int kLess = vector_bytes(kLayout, false), kMore = vector_bytes(kLayout, true);
    const unsigned char* const from = reinterpret_cast<const unsigned char*>(a_.units) +
                                      int64_t{begin} * kPieceBytes + threadIdx.x % 32 * kLaneBytes;
    FS_UNROLL
    for (int i = 0; i < kLess; i += kVectorBytes) copy_async_hinted(unit + i, from + i, policy_);
    if (dense) {
      FS_UNROLL
      for (int i = kLess; i < kMore; i += kVectorBytes)
        copy_async_hinted(unit + i, from + i, policy_);
    }
    if (kScaleBytes > 0 && threadIdx.x % 32 < kScaleBytes / kLaneBytes) {
      copy_async_hinted(unit + Place::kScales, from + (dense ? kMore : kLess), policy_);
    }
  }

  // Loads the offsets of the next step's units, long before they are needed. Lanes 2 m and 2 m + 1
  // have those of unit m and of the one after it.
  __device__ __forceinline__ void look_ahead() {
    if (left_ > 0 && is_inside()) ahead_ = load_readonly(offsets_);
  }

  // Rows of units past the end are clamped to the last one: they are multiplied, but not stored.
  __device__ __forceinline__ void seek() {
    const int lane = min(static_cast<int>(threadIdx.x % 32), 2 * kUnits - 1);
    const int row = (set_ * cut_.row_warps + row_warp_) * kUnits + lane / 2;
    offsets_ = a_.offsets + int64_t{min(row, cut_.unit_rows - 1)} * cut_.unit_cols +
               (in_set_ * cut_.column_warps + column_warp_ + lane % 2);
  }

  const Arguments& a_;
  const mma_units::Cut& cut_;
  const int row_warp_, column_warp_;
  const uint32_t ring_;
  const uint64_t policy_;
  int left_, set_, in_set_;    // steps to copy; the next one's row tile, and place in it
  const int32_t* offsets_;     // this lane's of that step
  int32_t ahead_ = 0;          // and its value
  uint32_t dense_ = 0;         // a bit for each unit of the ring
  int filled_ = 0, read_ = 0;  // stages: next to fill, next to read
};

}  // namespace flashsparse::hybrid_units
