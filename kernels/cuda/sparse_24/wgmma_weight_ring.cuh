// SPDX-License-Identifier: Apache-2.0
// A warp's units of 16 rows on their way through its own ring in shared memory, in which a lane
// copies what it will read. So the whole ring is in flight at any time, more than registers could
// hold, and from the start of the block on, when x may not be ready. For up to 64 tokens, with
// which shared memory has space and time to spare.
//
// The copies are cp.async and not bulk copies, behind which those of x would have to queue until
// the whole ring is filled.
#pragma once
#include "common/memory.cuh"
#include "cuda/mma_units/wgmma_tiles.cuh"
#include "cuda/mma_units/wgmma_x.cuh"
#include "cuda/sparse_24/wgmma_plan.h"
#include "cuda/sparse_24/wgmma_weights.cuh"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// Has the interface of WgmmaWeights, which keeps units in registers.
template <class Operand, class Shape>
class WgmmaWeightRing {
 public:
  using Unit = WgmmaUnit<typename Operand::Values>;
  static constexpr int kAtOnce = 1;

  __device__ __forceinline__ WgmmaWeightRing(const mma_units::WgmmaArguments& a,
                                             const mma_units::WgmmaX<Shape>& x, int warp)
      : a_(a),
        unit_row_(mma_units::WgmmaTiles::place_down(a) * Shape::kUnits + warp),
        tile_units_(a.down * Shape::kUnits),
        next_(a),
        policy_(next_.many_tokens() ? evict_normal_policy() : evict_first_policy()),
        left_(next_.left()) {
    const int first = warp * a.weight_stages;
    const int64_t sums = mma_units::wgmma_sums_bytes(Shape::kTokens, Shape::kGroups, a.depth);
    ring_ = x.end() + static_cast<uint32_t>(sums) + first * kLayout.bytes() +
            threadIdx.x % 32 * kLaneBytes;
    seek();
  }

  __device__ __forceinline__ void begin() {
    FS_NO_UNROLL
    for (int i = 0; i < a_.weight_stages; ++i) refill();
  }
  __device__ __forceinline__ const Unit& first() {
    take();
    return unit_;
  }
  __device__ __forceinline__ const Unit& unit(int) const { return unit_; }
  __device__ __forceinline__ void before_products(int) {}
  // The first product of the current unit has ended, so that all of it is in registers. Refills its
  // stage: a lane copies only to what it alone has read.
  __device__ __forceinline__ void after_first_product() { refill(); }
  __device__ __forceinline__ const Unit& advance(int) {
    take();
    return unit_;
  }

 private:
  static constexpr UnitLayout kLayout = Operand::Values::kLayout;
  static_assert(kLayout.group == 0, "no scales lie in a unit");

  // Waits for the next unit and loads it. Does nothing past the end.
  __device__ __forceinline__ void take() {
    if (left_ == 0) return;
    --left_;
    copy_async_wait(a_.weight_stages - 1);
    const uint32_t from = ring_ + read_ * kLayout.bytes();
    FS_UNROLL
    for (int i = 0; i < Unit::kVectors; ++i)
      unit_.values[i] = load_shared<uint4>(from + i * kVectorBytes);
    unit_.metadata = load_shared<uint4>(from + kLayout.metadata());
    if (++read_ == a_.weight_stages) read_ = 0;
  }

  // Starts to copy a unit to the stage that was read last: one group of the thread's copies, empty
  // past the end.
  __device__ __forceinline__ void refill() {
    if (!next_.ended()) copy_unit();
    copy_async_commit();
  }
  __device__ __forceinline__ void copy_unit() {
    const uint32_t to = ring_ + filled_ * kLayout.bytes();
    FS_UNROLL
    for (int i = 0; i < kLayout.bytes(); i += kVectorBytes)
      copy_async_hinted(to + i, from_ + i, policy_);
    from_ += a_.depth * kLayout.bytes();
    if (++filled_ == a_.weight_stages) filled_ = 0;
    if (next_.advance()) seek();
  }

  __device__ __forceinline__ void seek() {
    const int64_t row = next_.unit_row(tile_units_, unit_row_);
    from_ = reinterpret_cast<const unsigned char*>(a_.units) +
            (row * a_.unit_cols + next_.column()) * kLayout.bytes() + threadIdx.x % 32 * kLaneBytes;
  }

  const mma_units::WgmmaArguments& a_;
  const int unit_row_, tile_units_;
  uint32_t ring_;               // this lane's bytes of the warp's first stage
  mma_units::WgmmaTiles next_;  // to copy next
  const uint64_t policy_;
  const unsigned char* from_;  // this lane's bytes of that unit
  Unit unit_;                  // current
  int left_;                   // units that have not been loaded
  int filled_ = 0, read_ = 0;  // stages: next to fill, next to read
};

}  // namespace flashsparse::sparse_24
