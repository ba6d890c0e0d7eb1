// SPDX-License-Identifier: Apache-2.0
// A block of the decode kernels (few tokens) of sparse_24, whatever the type of x, and of
// hybrid_units: one launch that reads the weight once, in its stored layout, and x once per block.
//
// A block has a grid of row_warps x column_warps compute warps. In each step a warp multiplies
// row_units vertically adjacent units, which it copies through its own ring in shared memory
// (weight_ring.cuh), by x of the same columns, which all warps of the block share and one more warp
// copies (x_ring.cuh). At the end of a row tile (a `set`: row_warps * row_units units of rows) the
// warps along the columns add up their accumulators (sums.cuh). Warps synchronize only on the
// stages of x, so they drift apart and keep copies in flight.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/mma_units/steps.cuh"
#include "cuda/mma_units/sums.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/mma_units/x_ring.cuh"
#include "cuda/sparse_24/linear_plan.h"

namespace flashsparse::sparse_24 {

// Compile-time counterpart of an entry of kShapes.
template <int kTokens_,    // of y at most
          int kRowUnits_,  // that a warp multiplies in a step
          int kWarps_>     // compute warps of a block at most
struct Shape {
  static constexpr ShapeInfo kInfo{kTokens_, kRowUnits_, kWarps_};
  static constexpr int kTokens = kTokens_, kRowUnits = kRowUnits_;
  static constexpr int kThreads = (kWarps_ + 1) * 32;
  static constexpr uint32_t kPanelBytes = kTokens * 128;  // of x: 64 columns
  static constexpr uint32_t kXUnitBytes = kUnitCols / 64 * kPanelBytes;
};
// The same for x of 8 bits.
template <class Shape>
struct CodesShape : Shape {
  static constexpr uint32_t kXUnitBytes = Shape::kXUnitBytes / 2;
};

// The members of Multiplier, one for each warp:
//   Values                of the units (values.cuh)
//   Ring                  of units in shared memory (weight_ring.cuh); bytes(stages) of it
//   Sum                   type of accumulators: float or int32_t
//   kXBytes               of an element of x: 2, or 1 if the preceding kernel has quantized it
//   sums                  accumulators
//   multiply(units, x)    adds the product of units in shared memory, as Ring::wait() returns them
template <class Type, class Shape, class Multiplier, class Arguments>
__device__ __forceinline__ void run_block(const Arguments& a, const mma_units::Cut& cut,
                                          uint32_t shared) {
  using Values = typename Multiplier::Values;
  using Ring = typename Multiplier::Ring;
  using XRing = mma_units::XRing<Shape>;
  constexpr bool kNarrowX = Multiplier::kXBytes == 1;
  const int warps = cut.row_warps * cut.column_warps;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int row_warp = cut.by_column_warps(warp);
  const int column_warp = warp - row_warp * cut.column_warps;
  const mma_units::Shared layout(Shape::kTokens, Shape::kRowUnits, cut.row_warps, cut.column_warps,
                                 cut.x_stages, Ring::bytes(cut.weight_stages), Multiplier::kXBytes);
  mma_units::Steps steps(cut);
  XRing x(a, cut, layout, shared);
  const bool copies_x = warp == warps;
  Ring weights(a, cut, steps, row_warp, column_warp,
               shared + layout.weights + warp * layout.weight_ring);
  // Weights need not wait for the other warps, nor for the preceding kernel, which may write x.
  // Where all warps copy x, its barrier completes only when all earlier cp.async of a thread have.
  const int before = min(cut.stages_before_x, kNarrowX ? cut.weight_stages : steps.left() - 1);
  if (copies_x) {
    if (threadIdx.x % 32 == 0) x.init(kNarrowX ? 1 : warps + 1);
  } else {
    FS_NO_UNROLL
    for (int i = 0; i < before; ++i) weights.refill();
  }
  __syncthreads();
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  if (!kNarrowX || copies_x) x.fill_first(steps, kNarrowX ? 0 : warp, kNarrowX ? 1 : warps + 1);
  if (copies_x) {
    x.fill_later(steps, [] {});
    return;
  }
  FS_NO_UNROLL
  for (int i = before; i < cut.weight_stages; ++i) weights.refill();

  mma_units::Sums<Type, Shape, Values::kLayout.has_row_scales(),
                  token_scales_of(Values::kLayout.type, Multiplier::kXBytes),
                  typename Multiplier::Sum>
      sums(a, cut, layout, row_warp, column_warp, shared);
  sums.expect(steps.set());
  Multiplier multiplier(column_warp * Shape::kXUnitBytes);
  FS_NO_UNROLL
  while (!steps.ended()) {
    const uint32_t x_of_step = x.wait();
    const auto units = weights.wait();
    // Skips units past the last column, instead of zero-filling x: 0 * inf would give NaN.
    if (steps.inside(column_warp)) multiplier.multiply(units, x_of_step);
    weights.advance();
    __syncwarp();
    weights.refill();
    x.release();
    const mma_units::Steps here = steps;
    if (!steps.advance() && !steps.ended()) continue;
    sums.leave(multiplier.sums, here);
    if (!steps.ended()) sums.expect(steps.set());
    mma_units::clear<Shape>(multiplier.sums);
  }
}

}  // namespace flashsparse::sparse_24
