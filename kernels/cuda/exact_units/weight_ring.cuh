// SPDX-License-Identifier: Apache-2.0
// A warp's own ring of units and their slots in shared memory. Each lane copies the bytes of units
// that it will read; the slots all lanes read.
#pragma once
#include "common/memory.cuh"
#include "cuda/exact_units/linear_arguments.h"
#include "cuda/exact_units/linear_shared.h"
#include "cuda/mma_units/steps.cuh"

namespace flashsparse::exact_units {

template <class Shape>
class WeightRing {
 public:
  // `ring` is the warp's own; row_warp and column_warp are its position in the block.
  __device__ __forceinline__ WeightRing(const Arguments& a, const mma_units::Cut& cut,
                                        const mma_units::Steps& steps, int row_warp,
                                        int column_warp, uint32_t ring)
      : a_(a),
        cut_(cut),
        row_warp_(row_warp),
        column_warp_(column_warp),
        ring_(ring),
        policy_(evict_first_policy()),
        left_(steps.left()),
        set_(steps.set()),
        in_set_(steps.in_set()) {
    seek();
  }

  // Starts the copies of the next step, into the stage that was read last: one group of the
  // thread's copies, empty past the end.
  __device__ __forceinline__ void refill() {
    if (left_ > 0) copy_step();
    copy_async_commit();
  }

  // Waits for the current step.
  __device__ __forceinline__ void wait() const {
    copy_async_wait(cut_.weight_stages - 1);
    __syncwarp();  // other lanes have copied slots
  }
  // Shared addresses of this lane's bytes of the step's first unit, and of that unit's slots.
  __device__ __forceinline__ uint32_t units() const {
    return ring_ + threadIdx.x % 32 * kLaneBytes + read_ * kStage;
  }
  __device__ __forceinline__ uint32_t slots() const { return slots_at(read_); }
  __device__ __forceinline__ void advance() {
    if (++read_ == cut_.weight_stages) read_ = 0;
  }

 private:
  static constexpr int kUnit = unit_bytes(Shape::kKind);
  static constexpr uint32_t kStage = stage_bytes(Shape::kKind, Shape::kRowUnits);

  __device__ __forceinline__ uint32_t slots_at(int stage) const {
    return ring_ + cut_.weight_stages * kStage +
           stage * slots_bytes(Shape::kRowUnits, a_.exceptions.unit_slots);
  }

  __device__ __forceinline__ void copy_step() {
    --left_;
    if (in_set_ * cut_.column_warps + column_warp_ < cut_.unit_cols) {
      const uint32_t lane = threadIdx.x % 32;
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        const unsigned char* const from = reinterpret_cast<const unsigned char*>(a_.units) +
                                          uint64_t{unit_below(m)} * kUnit + lane * kLaneBytes;
        const uint32_t to = ring_ + lane * kLaneBytes + filled_ * kStage + m * kUnit;
        FS_UNROLL
        for (int i = 0; i < kUnit; i += kVectorBytes) {
          copy_async_hinted(to + i, from + i, policy_);
        }
      }
      // Four slots a lane. Units beside each other share a line of them, which is read again.
      const uint32_t lanes = a_.exceptions.unit_slots / 4, shift = lanes / 2;  // 1, 2, 4: 0, 1, 2
      if (lane < Shape::kRowUnits * lanes) {
        const uint32_t from = unit_below(static_cast<int>(lane >> shift)) * lanes;
        copy_async<16>(slots_at(filled_) + lane * kLaneBytes,
                       a_.exceptions.slots + (uint64_t{from} + (lane & (lanes - 1))) * 4, true);
      }
    }
    unit_ += cut_.column_warps;
    if (++filled_ == cut_.weight_stages) filled_ = 0;
    if (++in_set_ < cut_.set_steps) return;
    in_set_ = 0;
    ++set_;
    seek();
  }

  // The number of the unit that is m rows of units below the first. Rows past the end are clamped
  // to the last one: they are multiplied, but not stored.
  __device__ __forceinline__ uint32_t unit_below(int m) const {
    return unit_ + min(m, below_) * cut_.unit_cols;
  }

  __device__ __forceinline__ void seek() {
    const int last = cut_.unit_rows - 1;
    const int row = min((set_ * cut_.row_warps + row_warp_) * Shape::kRowUnits, last);
    below_ = last - row;
    unit_ =
        static_cast<uint32_t>(row) * cut_.unit_cols + in_set_ * cut_.column_warps + column_warp_;
  }

  const Arguments& a_;
  const mma_units::Cut& cut_;
  const int row_warp_, column_warp_;
  const uint32_t ring_;
  const uint64_t policy_;
  int left_, set_, in_set_;    // steps to copy; the next one's row tile, and place in it
  uint32_t unit_;              // number of its first unit
  int below_;                  // rows of units below that unit's
  int filled_ = 0, read_ = 0;  // stages: next to fill, next to read
};

}  // namespace flashsparse::exact_units
