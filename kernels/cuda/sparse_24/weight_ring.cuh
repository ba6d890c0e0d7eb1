// SPDX-License-Identifier: Apache-2.0
// A warp's own ring of units in shared memory. Each lane copies the bytes that it will read, except
// for group scales, which all lanes read.
#pragma once
#include "common/memory.cuh"
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/mma_units/steps.cuh"
#include "cuda/sparse_24/linear_shared.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

template <class Shape, class Values>
class WeightRing {
 public:
  static __device__ __forceinline__ constexpr uint32_t bytes(int stages) {
    return ring_bytes(Values::kLayout, Shape::kRowUnits, stages);
  }

  // `ring` and `barriers` are the warp's own; row_warp and column_warp are its position in the
  // block.
  __device__ __forceinline__ WeightRing(const mma_units::Arguments& a, const mma_units::Cut& cut,
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
  }

  // Starts the copies of the next step, into the stage that was read last: one group of the
  // thread's copies, empty past the end.
  __device__ __forceinline__ void refill() {
    if (left_ > 0) copy_step();
    copy_async_commit();
  }

  // Waits for the current step; returns the shared address of this lane's bytes of its first unit.
  __device__ __forceinline__ uint32_t wait() const {
    copy_async_wait(cut_.weight_stages - 1);
    if (kScales > 0) __syncwarp();
    return ring_ + read_ * kStage;
  }
  __device__ __forceinline__ void advance() {
    if (++read_ == cut_.weight_stages) read_ = 0;
  }

 private:
  static constexpr int kBytes = Values::kLayout.bytes(), kScales = Values::kLayout.scales();
  static constexpr uint32_t kPlace = place_bytes(Values::kLayout);
  static constexpr uint32_t kStage = Shape::kRowUnits * kPlace;

  __device__ __forceinline__ void copy_step() {
    --left_;
    if (in_set_ * cut_.column_warps + column_warp_ < cut_.unit_cols) {
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        const unsigned char* const from = from_ + (m == 0 || below_ < m ? 0 : m * row_bytes());
        const uint32_t unit = ring_ + filled_ * kStage + m * kPlace;
        FS_UNROLL
        for (int i = 0; i < kScales; i += kVectorBytes)
          copy_async_hinted(unit + i, from + i, policy_);
        if (kScales < kBytes && threadIdx.x % 32 < (kBytes - kScales) / kLaneBytes) {
          copy_async_hinted(unit + kScales, from + kScales, policy_);
        }
      }
    }
    from_ += cut_.column_warps * kBytes;
    if (++filled_ == cut_.weight_stages) filled_ = 0;
    if (++in_set_ < cut_.set_steps) return;
    in_set_ = 0;
    ++set_;
    seek();
  }

  // Rows of units past the end are clamped to the last one: they are multiplied, but not stored.
  __device__ __forceinline__ void seek() {
    const int last = cut_.unit_rows - 1;
    const int row = min((set_ * cut_.row_warps + row_warp_) * Shape::kRowUnits, last);
    const uint32_t column = in_set_ * cut_.column_warps + column_warp_;
    below_ = last - row;
    from_ = reinterpret_cast<const unsigned char*>(a_.units) + uint64_t{row_bytes()} * row +
            (column * kBytes + threadIdx.x % 32 * kLaneBytes);
  }
  // Distance between two rows of units.
  __device__ __forceinline__ uint32_t row_bytes() const { return cut_.unit_cols * kBytes; }

  const mma_units::Arguments& a_;
  const mma_units::Cut& cut_;
  const int row_warp_, column_warp_;
  const uint32_t ring_;
  const uint64_t policy_;
  int left_, set_, in_set_;    // steps to copy; the next one's row tile, and place in it
  const unsigned char* from_;  // this lane's bytes of its first unit
  int below_;                  // rows of units below that unit's
  int filled_ = 0, read_ = 0;  // stages: next to fill, next to read
};

}  // namespace flashsparse::sparse_24
