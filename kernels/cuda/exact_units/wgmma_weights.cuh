// SPDX-License-Identifier: Apache-2.0
// A warp's units of 16 rows on their way through its own ring in shared memory. A lane copies what
// it will read, but for the slots, of which each lane gets one. So the whole ring is in flight at
// any time, and from the start of the block on, when x may not be ready.
//
// The copies are cp.async and not bulk copies, behind which those of x would have to queue until
// the whole ring is filled.
#pragma once
#include "common/memory.cuh"
#include "cuda/exact_units/linear_arguments.h"
#include "cuda/exact_units/wgmma_plan.h"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/mma_units/wgmma_x.cuh"

namespace flashsparse::exact_units {

template <class Shape>
class WgmmaWeights {
 public:
  // `warp`: number of this warp in its block.
  __device__ __forceinline__ WgmmaWeights(const WgmmaArguments& a,
                                          const mma_units::WgmmaX<Shape>& x, int warp)
      : a_(a),
        unit_row_(mma_units::WgmmaTiles::place_down(a) * Shape::kUnits + warp),
        next_(a),
        policy_(next_.many_tokens() ? evict_normal_policy() : evict_first_policy()),
        left_(next_.left()) {
    const auto sums =
        static_cast<uint32_t>(mma_units::wgmma_sums_bytes(Shape::kTokens, Shape::kGroups, a.depth));
    const uint32_t units = x.end() + sums;
    const int first = warp * a.weight_stages;
    ring_ = units + first * kUnit + threadIdx.x % 32 * kLaneBytes;
    slots_ = units + Shape::kUnits * a.weight_stages * kUnit + first * slot_bytes() +
             threadIdx.x % 32 * 4;
    seek();
  }

  __device__ __forceinline__ void begin() {
    FS_NO_UNROLL
    for (int i = 0; i < a_.weight_stages; ++i) refill();
  }

  // Waits for the next unit. Does nothing past the end.
  __device__ __forceinline__ void take() {
    if (left_ == 0) return;
    --left_;
    copy_async_wait(a_.weight_stages - 1);
    __syncwarp();  // another lane has copied this one's slot
    const int lane = threadIdx.x % 32;
    slot_ =
        lane < a_.exceptions.unit_slots ? load_shared<uint32_t>(slots_ + read_ * slot_bytes()) : 0;
  }
  // This lane's part of a vector of the unit.
  __device__ __forceinline__ uint4 load(int vector) const {
    return load_shared<uint4>(ring_ + read_ * kUnit + vector * kVectorBytes);
  }
  // This lane's slot of the unit, or 0.
  __device__ __forceinline__ uint32_t slot() const { return slot_; }

  // All of the unit is in registers, of all lanes: refills its stage.
  __device__ __forceinline__ void release() {
    if (++read_ == a_.weight_stages) read_ = 0;
    refill();
  }

 private:
  static constexpr int kUnit = unit_bytes(Shape::kKind);

  __device__ __forceinline__ uint32_t slot_bytes() const { return a_.exceptions.unit_slots * 4; }

  // Starts to copy a unit to the stage that was read last: one group of the thread's copies, empty
  // past the end.
  __device__ __forceinline__ void refill() {
    if (!next_.ended()) copy_unit();
    copy_async_commit();
  }
  __device__ __forceinline__ void copy_unit() {
    const uint32_t lane = threadIdx.x % 32, lanes = a_.exceptions.unit_slots / 4;
    const auto* const from = reinterpret_cast<const unsigned char*>(a_.units) +
                             uint64_t{unit_} * kUnit + lane * kLaneBytes;
    const uint32_t to = ring_ + filled_ * kUnit;
    FS_UNROLL
    for (int i = 0; i < kUnit; i += kVectorBytes) copy_async_hinted(to + i, from + i, policy_);
    if (lane < lanes) {
      copy_async<16>(slots_ + filled_ * slot_bytes() + lane * 12,
                     a_.exceptions.slots + (uint64_t{unit_} * lanes + lane) * 4, true);
    }
    unit_ += a_.depth;
    if (++filled_ == a_.weight_stages) filled_ = 0;
    if (next_.advance()) seek();
  }

  // Rows of units past the end are clamped to the last one: they are multiplied, but not stored.
  __device__ __forceinline__ void seek() {
    const int row =
        min(next_.row_tile(next_.tile()) * (a_.down * Shape::kUnits) + unit_row_, a_.unit_rows - 1);
    unit_ = static_cast<uint32_t>(row) * a_.unit_cols + next_.column();
  }

  const WgmmaArguments& a_;
  const int unit_row_;
  uint32_t ring_, slots_;       // this lane's bytes of the warp's first stage
  mma_units::WgmmaTiles next_;  // to copy next
  const uint64_t policy_;
  uint32_t unit_;              // number of that unit
  uint32_t slot_ = 0;          // of the current one
  int left_;                   // units that have not been taken
  int filled_ = 0, read_ = 0;  // stages: next to fill, next to read
};

}  // namespace flashsparse::exact_units
