// SPDX-License-Identifier: Apache-2.0
// What a block of the kernels for a few tokens does, whatever x is: one launch that reads the
// weight once, as it lies, and x once a block.
//
// A warp takes row_units units, one above the other, through its own ring in shared memory
// (weight_ring.cuh) and multiplies them by x of their columns, which all warps of the block share
// (x_ring.cuh). Warps stand beside each other along rows and along columns; where a set of rows
// ends, those along columns add up their sums (sums.cuh). Warps wait for x and for nothing else of
// each other, so that each is somewhere else and the copies never stop.
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
#include "cuda/sparse_24/linear_shared.h"
#include "cuda/sparse_24/weight_ring.cuh"

namespace flashsparse::sparse_24 {

// The same as an entry of kShapes, for the kernel.
template <int kTokens_, int kRowUnits_, int kWarps_>
struct Shape {
  static constexpr ShapeInfo kInfo{kTokens_, kRowUnits_, kWarps_};
  static constexpr int kTokens = kTokens_, kRowUnits = kRowUnits_;
  static constexpr int kThreads = (kWarps_ + 1) * 32;
  static constexpr uint32_t kPanelBytes = kTokens * 128;  // of x: 64 columns
  static constexpr uint32_t kXUnitBytes = kUnitCols / 64 * kPanelBytes;
};
// The same of x that is codes of 8 bits.
template <class Shape>
struct CodesShape : Shape {
  static constexpr uint32_t kXUnitBytes = Shape::kXUnitBytes / 2;
};

// Of the ring of weights, at most: on an H200 large layers take 2 to 4% less time than with one.
inline constexpr int kStagesBeforeX = 2;

// Of a warp's Multiplier:
//   Values                of the units
//   Sum                   of products: float or int32_t
//   kXBytes               of an element of x: 2, or 1 of codes, which the launch before makes
//   sums                  of the units so far
//   multiply(units, x)    adds the product of units in shared memory
template <class Type, class Shape, class Multiplier>
__device__ __forceinline__ void run_block(const mma_units::Arguments& a, const mma_units::Cut& cut,
                                          uint32_t shared) {
  using Values = typename Multiplier::Values;
  using XRing = mma_units::XRing<Shape>;
  constexpr bool kNarrowX = Multiplier::kXBytes == 1;
  const int warps = cut.row_warps * cut.column_warps;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int row_warp = warp / cut.column_warps, column_warp = warp - row_warp * cut.column_warps;
  const mma_units::Shared layout(Shape::kTokens, Shape::kRowUnits, cut.row_warps, cut.column_warps,
                                 cut.weight_stages, cut.x_stages,
                                 ring_bytes(Values::kLayout, Shape::kRowUnits, cut.weight_stages),
                                 Multiplier::kXBytes);
  mma_units::Steps steps(a, cut, Shape::kRowUnits);
  XRing x(a, cut, layout, shared);
  const bool copies_x = warp == warps;
  const uint32_t barriers =
      XRing::weight_barriers(cut, shared) + warp * cut.weight_stages * kMbarrierBytes;
  if (threadIdx.x % 32 == 0) {
    if (copies_x) {
      x.init(kNarrowX ? 1 : warps + 1);
    } else {
      WeightRing<Shape, Values>::init(cut, barriers);
    }
  }
  __syncthreads();
  allow_next_kernel();
  if (copies_x) {
    wait_for_last_kernel();
    x.template fill_first<kNarrowX>(steps, warp, warps + 1);
    x.fill_later(steps, [] {});
    return;
  }

  // Weights need not wait for the kernel before, which may make x. x is there when all copies are
  // that a thread started before it: some of the weights follow it, but where one warp copies x.
  const int before =
      kNarrowX ? cut.weight_stages : min(min(kStagesBeforeX, cut.weight_stages), steps.left() - 1);
  WeightRing<Shape, Values> weights(a, cut, steps, row_warp, column_warp,
                                    shared + layout.weights + warp * layout.weight_ring, barriers);
  FS_NO_UNROLL
  for (int i = 0; i < before; ++i) weights.refill();
  wait_for_last_kernel();
  if constexpr (!kNarrowX) x.fill_first(steps, warp, warps + 1);
  FS_NO_UNROLL
  for (int i = before; i < cut.weight_stages; ++i) weights.refill();

  mma_units::Sums<Type, Shape, Values::kLayout.has_row_scales(),
                  token_scales_of(Values::kLayout.type, Multiplier::kXBytes),
                  typename Multiplier::Sum>
      sums(a, cut, layout, row_warp, column_warp, shared);
  Multiplier multiplier(column_warp * Shape::kXUnitBytes);
  FS_NO_UNROLL
  while (!steps.ended()) {
    const uint32_t x_of_step = x.wait(), units = weights.wait();
    // Beyond the last column there is nothing, and not zeros: they could meet an infinity.
    if (steps.inside(cut, column_warp)) multiplier.multiply(units, x_of_step);
    weights.advance();
    __syncwarp();
    weights.refill();
    x.release();
    const mma_units::Steps here = steps;
    if (!steps.advance() && !steps.ended()) continue;
    sums.leave(multiplier.sums, here);
    mma_units::clear<Shape>(multiplier.sums);
  }
}

}  // namespace flashsparse::sparse_24
