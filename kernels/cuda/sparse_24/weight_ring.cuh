// SPDX-License-Identifier: Apache-2.0
// A warp's own ring of units in shared memory. Each lane copies the bytes that it will read, except
// for group scales, which all lanes read.
#pragma once
#include "common/mbarrier.cuh"
#include "common/memory.cuh"
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/mma_units/steps.cuh"
#include "cuda/sparse_24/linear_shared.h"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

template <class Shape, class Values>
class WeightRing {
 public:
  // `ring` and `barriers` are the warp's own; row_warp and column_warp are its position in the
  // block.
  __device__ __forceinline__ WeightRing(const mma_units::Arguments& a, const mma_units::Cut& cut,
                                        const mma_units::Steps& steps, int row_warp,
                                        int column_warp, uint32_t ring, uint32_t barriers)
      : a_(a),
        cut_(cut),
        row_warp_(row_warp),
        column_warp_(column_warp),
        ring_(ring + threadIdx.x % 32 * kLaneBytes),
        barriers_(barriers),
        policy_(evict_first_policy()),
        next_(steps) {
    seek();
  }

  // Called by one lane; a block barrier must follow.
  static __device__ __forceinline__ void init(const mma_units::Cut& cut, uint32_t barriers) {
    FS_NO_UNROLL
    for (int i = 0; i < cut.weight_stages; ++i) mbarrier_init(barriers + i * kMbarrierBytes, 32);
  }

  // Starts the copies of the next step, into the stage that was read last.
  __device__ __forceinline__ void refill() {
    if (next_.ended()) return;
    const uint32_t to = ring_ + filled_ * kStage;
    if (next_.inside(cut_, column_warp_)) {
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        const unsigned char* const from = from_ + min(m, below_) * row_bytes();
        const uint32_t unit = to + m * kPlace;
        FS_UNROLL
        for (int i = 0; i < kScales; i += kVectorBytes)
          copy_async_hinted(unit + i, from + i, policy_);
        if (kScales < kBytes && threadIdx.x % 32 < (kBytes - kScales) / kLaneBytes) {
          copy_async_hinted(unit + kScales, from + kScales, policy_);
        }
      }
      from_ += cut_.column_warps * kBytes;
    }
    mbarrier_arrive_after_copies(barriers_ + filled_ * kMbarrierBytes);
    if (++filled_ == cut_.weight_stages) filled_ = 0;
    if (next_.advance()) seek();
  }

  // Waits for the current step; returns the shared address of this lane's bytes of its first unit.
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
  static constexpr int kBytes = Values::kLayout.bytes(), kScales = Values::kLayout.scales();
  static constexpr uint32_t kPlace = place_bytes(Values::kLayout);
  static constexpr uint32_t kStage = Shape::kRowUnits * kPlace;

  // Rows of units past the end are clamped to the last one: they are multiplied, but not stored.
  __device__ __forceinline__ void seek() {
    const auto last = static_cast<int>(unit_rows(a_.rows)) - 1;
    const int row = min((next_.set() * cut_.row_warps + row_warp_) * Shape::kRowUnits, last);
    const uint32_t column = next_.column(cut_) + column_warp_;
    below_ = last - row;
    from_ = reinterpret_cast<const unsigned char*>(a_.units) + row * size_t{row_bytes()} +
            (column * kBytes + threadIdx.x % 32 * kLaneBytes);
  }
  // Distance between two rows of units.
  __device__ __forceinline__ uint32_t row_bytes() const {
    return static_cast<uint32_t>(unit_cols(a_.cols)) * kBytes;
  }

  const mma_units::Arguments& a_;
  const mma_units::Cut& cut_;
  const int row_warp_, column_warp_;
  const uint32_t ring_, barriers_;
  const uint64_t policy_;
  mma_units::Steps next_;      // to copy next
  const unsigned char* from_;  // this lane's bytes of its first unit
  int below_;                  // rows of units below that unit's
  int filled_ = 0, read_ = 0;  // stages: next to fill, next to read
  uint32_t parity_ = 0;
};

}  // namespace flashsparse::sparse_24
