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
#include "cuda/sparse_24/linear_arguments.h"
#include "cuda/sparse_24/linear_plan.h"
#include "cuda/sparse_24/linear_shared.h"
#include "cuda/sparse_24/steps.cuh"
#include "cuda/sparse_24/sums.cuh"
#include "cuda/sparse_24/values.cuh"
#include "cuda/sparse_24/weight_ring.cuh"
#include "cuda/sparse_24/x_ring.cuh"

namespace flashsparse::sparse_24 {

// The same as an entry of kShapes, for the kernel.
template <int kTokens_, int kRowUnits_, int kWarps_>
struct Shape {
  static constexpr int kTokens = kTokens_, kRowUnits = kRowUnits_;
  static constexpr int kThreads = (kWarps_ + 1) * 32;
  static constexpr uint32_t kPanelBytes = kTokens * 128;  // of x: 64 columns
  static constexpr uint32_t kXUnitBytes = kUnitCols / 64 * kPanelBytes;
};

template <class Type, class Shape, class Values>
class Multiplier {
 public:
  using Tile = typename Sums<Type, Shape>::Tile;

  // `x_unit`: from the beginning of a stage of x to the warp's unit of columns.
  __device__ __forceinline__ explicit Multiplier(uint32_t x_unit) {
    const int lane = threadIdx.x % 32;
    x_row_ = x_unit + lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
    clear();
  }

  __device__ __forceinline__ void clear() {
    FS_UNROLL
    for (int i = 0; i < Shape::kRowUnits * kTokenBlocks * 4; ++i) {
      sums[i / 4 / kTokenBlocks][i / 4 % kTokenBlocks][i % 4] = 0;
    }
  }

  // Adds the product of a step. `units` is where the lane's bytes are, `x` where the stage begins.
  __device__ __forceinline__ void multiply(uint32_t units, uint32_t x) {
    const uint32_t even = x + x_row_, odd = even ^ 64;  // of steps
    uint4 metadata[Shape::kRowUnits];
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      metadata[m] = load_shared<uint4>(units + m * kUnitBytes + kMetadata);
    }
    FS_UNROLL
    for (int pair = 0; pair < kSteps / 2; ++pair) {
      uint32_t words[Shape::kRowUnits];
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        const uint4& of = metadata[m];
        words[m] = pair == 0 ? of.x : pair == 1 ? of.y : pair == 2 ? of.z : of.w;
      }
      step<0>(2 * pair, units, even + pair * Shape::kPanelBytes, words);
      step<1>(2 * pair + 1, units, odd + pair * Shape::kPanelBytes, words);
    }
  }

  Tile sums;

 private:
  static constexpr int kTokenBlocks = Shape::kTokens / 8;

  template <int half>
  __device__ __forceinline__ void step(int number, uint32_t units, uint32_t x,
                                       const uint32_t (&metadata)[Shape::kRowUnits]) {
    uint32_t w[Shape::kRowUnits][4];
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) Values::load(w[m], number, units + m * kUnitBytes);
    FS_UNROLL
    for (int n = 0; n < kTokenBlocks; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, x + n * 8 * 128);
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        mma_sparse_m16n8k32<Type, half>(sums[m][n], w[m], b, metadata[m]);
      }
    }
  }

  uint32_t x_row_;  // of which this lane gives the address to ldmatrix, of an even step
};

template <class Type, class Shape, class Values>
__device__ __forceinline__ void run_block(const Arguments& a, const Cut& cut, uint32_t shared) {
  const int warps = cut.row_warps * cut.column_warps;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int row_warp = warp / cut.column_warps, column_warp = warp - row_warp * cut.column_warps;
  const Shared layout(Shape::kTokens, Shape::kRowUnits, cut.row_warps, cut.column_warps,
                      cut.weight_stages, cut.x_stages);
  Steps steps(a, cut, Shape::kRowUnits);
  XRing<Shape> x(a, cut, layout, shared);
  const bool copies_x = warp == warps;
  const uint32_t barriers =
      XRing<Shape>::weight_barriers(cut, shared) + warp * cut.weight_stages * kMbarrierBytes;
  if (threadIdx.x % 32 == 0) {
    if (copies_x) {
      x.init();
    } else {
      WeightRing<Shape>::init(cut, barriers);
    }
  }
  __syncthreads();
  x.fill_first(steps, warp, warps + 1);
  if (copies_x) {
    x.fill_later(steps);
    return;
  }

  WeightRing<Shape> weights(a, cut, steps, row_warp, column_warp,
                            shared + layout.weights + warp * layout.weight_ring, barriers);
  FS_NO_UNROLL
  for (int i = 0; i < cut.weight_stages; ++i) weights.refill();

  Sums<Type, Shape> sums(a, cut, layout, row_warp, column_warp, shared);
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
    const Steps here = steps;
    if (!steps.advance() && !steps.ended()) continue;
    sums.leave(multiplier.sums, here);
    multiplier.clear();
  }
}

// Launch with any number of blocks up to the number of steps, plan.threads() and
// plan.shared_bytes().
template <class Type, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_kernel(const Arguments arguments, const Cut cut) {
  FS_DYNAMIC_SHARED(shared);
  run_block<Type, Shape, NativeValues>(arguments, cut, shared_address(shared));
}

struct Compiled {
  void (*float16)(Arguments, Cut);
  void (*bfloat16)(Arguments, Cut);
};

#define FS_COMPILED(tokens, row_units, warps)               \
  {linear_kernel<Float16, Shape<tokens, row_units, warps>>, \
   linear_kernel<BFloat16, Shape<tokens, row_units, warps>>},
// By the index of kShapes.
inline const Compiled kCompiledLinear[] = {FS_SPARSE_24_SHAPES(FS_COMPILED)};
#undef FS_COMPILED

}  // namespace flashsparse::sparse_24
