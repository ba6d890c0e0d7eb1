// SPDX-License-Identifier: Apache-2.0
// Grouped products of a mixture's experts in sparse_24, by mma.sp: one launch for any routing. A
// persistent grid shares the row tiles of all blocks of slots, whose number it reads from the
// device (cuda/experts). Weight ring, dequantization and steps are those of the decode kernel
// (linear.cuh).
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "cuda/experts/arguments.h"
#include "cuda/experts/epilogue.cuh"
#include "cuda/experts/steps.cuh"
#include "cuda/experts/x_stages.cuh"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/sparse_24/experts_compiled.h"
#include "cuda/sparse_24/linear.cuh"

namespace flashsparse::sparse_24 {

// Compile-time counterpart of an entry of kExpertsShapes.
template <int tokens, int row_units, int warps>
struct ExpertsShape : Shape<tokens, row_units, warps> {};

// How scales of groups are applied does not depend on the shape, since it rounds: a token has the
// same bits in any batch.
template <int tokens, int row_units, int warps, class Values>
inline constexpr Scaled kScaled<ExpertsShape<tokens, row_units, warps>, Values> =
    Values::kLayout.group == 0     ? Scaled::kNever
    : Values::kLayout.group == 128 ? Scaled::kSums
                                   : Scaled::kCodes;

// A warp's own ring of units in shared memory, as that of weight_ring.cuh, for the steps of
// experts.
template <class Shape, class Values>
class ExpertsRing {
 public:
  // `ring` is the warp's own; row_warp and column_warp are its position in the block.
  __device__ __forceinline__ ExpertsRing(const experts::Arguments& a, const experts::Cut& cut,
                                         const experts::Steps& steps, int row_warp, int column_warp,
                                         uint32_t ring)
      : a_(a),
        cut_(cut),
        row_warp_(row_warp),
        column_warp_(column_warp),
        ring_(ring + threadIdx.x % 32 * kLaneBytes),
        steps_(steps) {
    if (!steps_.ended()) seek();
  }

  // Starts the copies of the next step, to a stage: one group of the thread's copies, empty past
  // the end.
  __device__ __forceinline__ void fill(int stage) {
    if (!steps_.ended()) copy_step(stage);
    copy_async_commit();
  }
  // Waits for the current step; returns the shared address of this lane's bytes of its first unit.
  __device__ __forceinline__ uint32_t wait() const {
    copy_async_wait(cut_.weight_stages - 1);
    if (Values::kLayout.scales() < Values::kLayout.bytes()) __syncwarp();
    return ring_ + read_ * kStage;
  }
  // The current step has been read: refills its stage. Call after a warp barrier.
  __device__ __forceinline__ void advance() {
    fill(read_);
    if (++read_ == cut_.weight_stages) read_ = 0;
  }

 private:
  static constexpr int kBytes = Values::kLayout.bytes();
  static constexpr uint32_t kStage = Shape::kRowUnits * place_bytes(Values::kLayout);

  __device__ __forceinline__ void copy_step(int stage) {
    if (steps_.inside(column_warp_)) {
      copy_units(ring_ + stage * kStage);
    }
    from_ += cut_.column_warps * (kBytes / kLaneBytes);
    const bool ends_set = steps_.ends_set();
    steps_.advance();
    if (ends_set && !steps_.ended()) seek();
  }

  // Each lane copies the bytes that it will read, except for group scales, which all lanes read. A
  // unit past the last row is a copy of the one above it: it is multiplied, but not stored.
  __device__ __forceinline__ void copy_units(uint32_t stage) const {
    constexpr int kScales = Values::kLayout.scales();
    const unsigned char* const first =
        reinterpret_cast<const unsigned char*>(a_.units) + uint64_t{from_} * kLaneBytes;
    const int below = cut_.unit_rows - 1 - row();
    const uint64_t policy = evict_first_policy();
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      const unsigned char* const from = first + (m == 0 || below < m ? 0 : m * row_bytes());
      const uint32_t unit = stage + m * place_bytes(Values::kLayout);
      FS_UNROLL
      for (int i = 0; i < kScales; i += kVectorBytes) copy_async_hinted(unit + i, from + i, policy);
      if (kScales < kBytes && threadIdx.x % 32 < (kBytes - kScales) / kLaneBytes) {
        copy_async_hinted(unit + kScales, from + kScales, policy);
      }
    }
  }

  __device__ __forceinline__ void seek() {
    const int first = a_.order.experts[steps_.slot_block()] * cut_.unit_rows;
    from_ = ((first + row()) * static_cast<uint32_t>(cut_.unit_cols) + column_warp_) *
                (kBytes / kLaneBytes) +
            threadIdx.x % 32;
  }
  // The first row of units of the next step, in its expert; past the end the last one instead. Not
  // held, as registers are scarce.
  __device__ __forceinline__ int row() const {
    return min((steps_.set() * cut_.row_warps + row_warp_) * Shape::kRowUnits, cut_.unit_rows - 1);
  }
  // Distance between two rows of units.
  __device__ __forceinline__ uint32_t row_bytes() const { return cut_.unit_cols * kBytes; }

  const experts::Arguments& a_;
  const experts::Cut& cut_;
  const int row_warp_, column_warp_;
  const uint32_t ring_;
  experts::Steps steps_;  // at the next one to copy
  uint32_t from_ = 0;     // this lane's bytes of its first unit, counted in kLaneBytes
  int read_ = 0;          // the stage to read next
};

// Launch with plan.blocks blocks of plan.threads() threads and plan.shared_bytes() of dynamic
// shared memory.
template <class Type, class Shape, class Values>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    experts_kernel(const experts::Arguments a, const experts::Cut cut) {
  FS_DYNAMIC_SHARED(dynamic);
  const uint32_t shared = shared_address(dynamic);
  const int warps = cut.row_warps * cut.column_warps;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int row_warp = cut.by_column_warps(warp);
  const int column_warp = warp - row_warp * cut.column_warps;
  const mma_units::Shared layout(
      Shape::kTokens, Shape::kRowUnits, cut.row_warps, cut.column_warps, cut.x_stages,
      ring_bytes(Values::kLayout, Shape::kRowUnits, cut.weight_stages), 2);
  const bool copies_x = warp == warps;
  experts::XStages<Shape> x(a, cut, layout, shared);
  if (copies_x && threadIdx.x % 32 == 0) x.init();
  // The order comes from the preceding kernel, or from the one before that: this one lets the next
  // begin only when it has the order itself.
  if (!cut.early_weights) griddepcontrol_wait();
  experts::Steps steps(cut, a.order.blocks[0]);
  ExpertsRing<Shape, Values> weights(a, cut, steps, row_warp, column_warp,
                                     shared + layout.weights + warp * layout.weight_ring);
  if (!copies_x) {
    FS_NO_UNROLL
    for (int i = 0; i < cut.weight_stages; ++i) weights.fill(i);
  }
  __syncthreads();
  griddepcontrol_launch_dependents();
  if (cut.early_weights) griddepcontrol_wait();
  if (copies_x) {
    x.fill(steps);
    return;
  }
  experts::Epilogue<Type, Shape, Values::kLayout.has_row_scales()> epilogue(
      a, cut, layout, row_warp, column_warp, shared);
  if (!steps.ended()) epilogue.expect(steps, true);
  Multiplier<Type, Shape, Values> multiplier(column_warp * Shape::kXUnitBytes);
  FS_NO_UNROLL
  while (!steps.ended()) {
    const uint32_t x_of_step = x.wait(), units = weights.wait();
    // Skips units past the last column, instead of zero-filling x: 0 * inf would give NaN.
    if (steps.inside(column_warp)) multiplier.multiply(units, x_of_step);
    __syncwarp();
    weights.advance();
    x.release(steps);
    const experts::Steps here = steps;
    const bool other_slots = steps.advance();
    if (!here.ends_set()) continue;
    epilogue.leave(multiplier.sums, here);
    if (!steps.ended()) epilogue.expect(steps, other_slots);
    mma_units::clear<Shape>(multiplier.sums);
  }
}

template <class Values>
const ExpertsCompiled* compiled_experts() {
#define FS_COMPILED(...)                                       \
  {experts_kernel<Float16, ExpertsShape<__VA_ARGS__>, Values>, \
   experts_kernel<BFloat16, ExpertsShape<__VA_ARGS__>, Values>},
  static const ExpertsCompiled compiled[] = {FS_SPARSE_24_EXPERTS_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::sparse_24
