// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from sparse_24 by mma.sp, for a few tokens: one launch that reads the weight
// once, as it lies, and x once a block.
//
// A warp takes row_units units, one above the other, through its own ring in shared memory
// (weight_ring.cuh) and multiplies them by x of their columns, which all warps of the block share
// (x_ring.cuh). Warps stand beside each other along rows and along columns; where a set of rows
// ends, those along columns add up their sums (sums.cuh). Warps wait for x and for nothing else of
// each other, so that each is somewhere else and the copies never stop.
#pragma once
#include "common/device.cuh"
#include "common/mma.cuh"
#include "common/mma_sparse.cuh"
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/mma_units/steps.cuh"
#include "cuda/mma_units/sums.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/mma_units/x_ring.cuh"
#include "cuda/sparse_24/group_sums.cuh"
#include "cuda/sparse_24/linear_compiled.h"
#include "cuda/sparse_24/linear_plan.h"
#include "cuda/sparse_24/linear_shared.h"
#include "cuda/sparse_24/values.cuh"
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

template <class Type, class Shape, class Values>
class Multiplier {
 public:
  using Tile = mma_units::SumsTile<Shape>;

  // `x_unit`: from the beginning of a stage of x to the warp's unit of columns.
  __device__ __forceinline__ explicit Multiplier(uint32_t x_unit) {
    const int lane = threadIdx.x % 32;
    x_row_ = x_unit + lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
    mma_units::clear<Shape>(sums);
  }

  // Adds the product of units. `units` is where the lane's bytes are, `x` where the stage begins.
  __device__ __forceinline__ void multiply(uint32_t units, uint32_t x) {
    const uint32_t even = x + x_row_, odd = even ^ 64;  // of steps
    Groups groups(sums, units);
    uint4 metadata[Shape::kRowUnits], values[Shape::kRowUnits];
    load(metadata, units + kUnit.metadata());
    FS_UNROLL
    for (int step = 0; step < kSteps; step += 2) {
      uint32_t words[Shape::kRowUnits];
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        const uint4& of = metadata[m];
        words[m] = step == 0 ? of.x : step == 2 ? of.y : step == 4 ? of.z : of.w;
      }
      const uint32_t panel = step / 2 * Shape::kPanelBytes;
      load_values(values, units, step);
      multiply_step<0>(groups, values, step, even + panel, words);
      load_values(values, units, step + 1);
      multiply_step<1>(groups, values, step + 1, odd + panel, words);
    }
  }

  Tile sums;

 private:
  using Groups = GroupSums<Type, Shape, Values>;
  using Vectors = uint4[Shape::kRowUnits];  // one of each unit
  static constexpr UnitLayout kUnit = Values::kLayout;

  static __device__ __forceinline__ void load(Vectors& vectors, uint32_t place) {
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      vectors[m] = load_shared<uint4>(place + m * place_bytes(kUnit));
    }
  }
  // Those that begin with the step.
  static __device__ __forceinline__ void load_values(Vectors& values, uint32_t units, int step) {
    constexpr int kLaneSteps = kUnit.lane_steps();
    if (step % kLaneSteps == 0) load(values, units + step / kLaneSteps * kVectorBytes);
  }

  template <int half>
  static __device__ __forceinline__ void multiply_step(
      Groups& groups, const Vectors& values, int step, uint32_t x,
      const uint32_t (&metadata)[Shape::kRowUnits]) {
    uint32_t w[Shape::kRowUnits][4];
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      Values::template widen<Type>(w[m], values[m], step % kUnit.lane_steps());
      groups.scale(w[m], m, step);
    }
    Tile& to = groups.begin(step);
    FS_UNROLL
    for (int n = 0; n < Shape::kTokens / 8; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, x + n * 8 * 128);
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        mma_sparse_m16n8k32<Type, half>(to[m][n], w[m], b, metadata[m]);
      }
    }
    groups.end(step);
  }

  uint32_t x_row_;  // of which this lane gives the address to ldmatrix, of an even step
};

template <class Type, class Shape, class Values>
__device__ __forceinline__ void run_block(const mma_units::Arguments& a, const mma_units::Cut& cut,
                                          uint32_t shared) {
  using XRing = mma_units::XRing<Shape>;
  const int warps = cut.row_warps * cut.column_warps;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int row_warp = warp / cut.column_warps, column_warp = warp - row_warp * cut.column_warps;
  const mma_units::Shared layout(Shape::kTokens, Shape::kRowUnits, cut.row_warps, cut.column_warps,
                                 cut.weight_stages, cut.x_stages,
                                 ring_bytes(Values::kLayout, Shape::kRowUnits, cut.weight_stages));
  mma_units::Steps steps(a, cut, Shape::kRowUnits);
  XRing x(a, cut, layout, shared);
  const bool copies_x = warp == warps;
  const uint32_t barriers =
      XRing::weight_barriers(cut, shared) + warp * cut.weight_stages * kMbarrierBytes;
  if (threadIdx.x % 32 == 0) {
    if (copies_x) {
      x.init(warps + 1);
    } else {
      WeightRing<Shape, Values>::init(cut, barriers);
    }
  }
  __syncthreads();
  x.fill_first(steps, warp, warps + 1);
  if (copies_x) {
    x.fill_later(steps, [] {});
    return;
  }

  WeightRing<Shape, Values> weights(a, cut, steps, row_warp, column_warp,
                                    shared + layout.weights + warp * layout.weight_ring, barriers);
  FS_NO_UNROLL
  for (int i = 0; i < cut.weight_stages; ++i) weights.refill();

  mma_units::Sums<Type, Shape, Values::kLayout.has_row_scales()> sums(a, cut, layout, row_warp,
                                                                      column_warp, shared);
  Multiplier<Type, Shape, Values> multiplier(column_warp * Shape::kXUnitBytes);
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

// Launch with any number of blocks up to the number of steps, plan.threads() and
// plan.shared_bytes().
template <class Type, class Shape, class Values>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_kernel(const mma_units::Arguments arguments, const mma_units::Cut cut) {
  FS_DYNAMIC_SHARED(shared);
  run_block<Type, Shape, Values>(arguments, cut, shared_address(shared));
}

template <class Shape, class Values>
constexpr Compiled compiled_in() {
  if constexpr (is_compiled(Shape::kInfo, Values::kLayout)) {
    return {linear_kernel<Float16, Shape, Values>, linear_kernel<BFloat16, Shape, Values>};
  } else {
    return {};
  }
}

template <class Values>
const Compiled* compiled_linear() {
#define FS_COMPILED(tokens, row_units, warps) \
  compiled_in<Shape<tokens, row_units, warps>, Values>(),
  static const Compiled compiled[] = {FS_SPARSE_24_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::sparse_24
