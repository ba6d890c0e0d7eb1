// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from tiled_bitmap, for a few tokens: one launch that reads the weight once, as
// it lies, and x once a block.
//
// A warp takes row_units units, one above the other, through its own ring in shared memory
// (weight_ring.cuh), by the orders of one that does no other work but that and to copy x
// (weight_orders.cuh). It makes operands of the kept values (kept_values.cuh) and multiplies them
// by x of their columns, which all warps of the block share. Warps stand beside each other along
// rows and along columns; where a set of rows ends, those along columns add up their sums. Warps
// wait for x and for nothing else of each other, so that each is somewhere else and the copies
// never stop.
#pragma once
#include "common/bulk_copy.cuh"
#include "common/device.cuh"
#include "common/mma.cuh"
#include "cuda/mma_units/steps.cuh"
#include "cuda/mma_units/sums.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/mma_units/x_ring.cuh"
#include "cuda/tiled_bitmap/kept_values.cuh"
#include "cuda/tiled_bitmap/linear_arguments.h"
#include "cuda/tiled_bitmap/linear_compiled.h"
#include "cuda/tiled_bitmap/linear_plan.h"
#include "cuda/tiled_bitmap/linear_shared.h"
#include "cuda/tiled_bitmap/weight_orders.cuh"
#include "cuda/tiled_bitmap/weight_ring.cuh"

namespace flashsparse::tiled_bitmap {

// The same as an entry of kShapes, for the kernel.
template <int kTokens_, int kRowUnits_, int kWarps_>
struct Shape {
  static constexpr ShapeInfo kInfo{kTokens_, kRowUnits_, kWarps_};
  static constexpr int kTokens = kTokens_, kRowUnits = kRowUnits_;
  static constexpr int kThreads = (kWarps_ + 1) * 32;
  static constexpr uint32_t kPanelBytes = kTokens * 128;  // of x: 64 columns, a mask of a lane
  static constexpr uint32_t kXUnitBytes = kMaskWords * kPanelBytes;
};

template <class Type, class Shape>
class Multiplier {
 public:
  using Tile = mma_units::SumsTile<Shape>;
  using Places = Place[Shape::kRowUnits];

  // `x_unit`: from the beginning of a stage of x to the warp's unit of columns. `scratch` is the
  // warp's.
  __device__ __forceinline__ Multiplier(uint32_t x_unit, uint32_t scratch, uint32_t quarters)
      : scratch_(scratch), unit_bytes_(scratch_bytes(quarters)) {
    const int lane = threadIdx.x % 32;
    x_row_ = x_unit + lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
    mma_units::clear<Shape>(sums);
  }

  // Takes units out of the ring. A barrier of the warp follows.
  __device__ __forceinline__ void take(const Places& places) {
    const int lane = threadIdx.x % 32;
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      const uint32_t head = places[m].address(), scratch = scratch_ + m * unit_bytes_;
      masks_[m] = load_shared<uint4>(head + lane * 16);
      const uint32_t starts = load_shared<uint32_t>(head + kMaskLines * kLineBytes + lane * 4);
      at_[0][m] = scratch + (starts & 0xffff) * 4;
      at_[1][m] = scratch + (starts >> 16) * 4;
      spread_items(head + kHeadBytes, places[m].lines() - kHeadLines, scratch);
    }
  }

  // Adds the product of the units that it took. `x` is where the stage begins.
  __device__ __forceinline__ void multiply(uint32_t x) {
    const uint32_t even = x + x_row_, odd = even ^ 64;  // of 32 columns
    // Both runs side by side: each is one chain of instructions that wait for each other.
    FS_UNROLL
    for (int word = 0; word < kRunMasks; ++word) {
      uint32_t mask[kRuns][Shape::kRowUnits];
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        mask[0][m] = word == 0 ? masks_[m].x : masks_[m].y;
        mask[1][m] = word == 0 ? masks_[m].z : masks_[m].w;
      }
      multiply_half<0>(mask, at_, even + word * Shape::kPanelBytes);
      multiply_half<1>(mask, at_, odd + word * Shape::kPanelBytes);
    }
  }

  // Adds the product of units in the ring.
  __device__ __forceinline__ void multiply_slowly(const Places& places, uint32_t x) {
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      SlowOperands operands(places[m].address());
      FS_NO_UNROLL
      for (int columns = 0; columns < 2 * kMaskWords; ++columns) {
        uint32_t a[2][4];
        operands.next(columns, a);
        const uint32_t at = ((x + x_row_) ^ columns % 2 * 64) + columns / 2 * Shape::kPanelBytes;
        FS_UNROLL
        for (int n = 0; n < Shape::kTokens / 8; ++n) {
          uint32_t b[4];
          ldmatrix_x4(b, at + n * 8 * 128);
          mma_m16n8k16<Type>(sums[m][n], a[0], b[0], b[1]);
          mma_m16n8k16<Type>(sums[m][n], a[1], b[2], b[3]);
        }
      }
    }
  }

  Tile sums;

 private:
  using OfRuns = uint32_t[kRuns][Shape::kRowUnits];

  // 32 columns of either run.
  template <int half>
  __device__ __forceinline__ void multiply_half(const OfRuns& masks, OfRuns& at, uint32_t x) {
    constexpr uint32_t kRunBytes = kRunMasks * Shape::kPanelBytes;  // of x
    uint32_t a[kRuns][Shape::kRowUnits][2][4];
    FS_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        next_operands<half>(masks[run][m], at[run][m], a[run][m]);
      }
    }
    FS_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      FS_UNROLL
      for (int n = 0; n < Shape::kTokens / 8; ++n) {
        uint32_t b[4];
        ldmatrix_x4(b, x + run * kRunBytes + n * 8 * 128);
        FS_UNROLL
        for (int m = 0; m < Shape::kRowUnits; ++m) {
          mma_m16n8k16<Type>(sums[m][n], a[run][m][0], b[0], b[1]);
          mma_m16n8k16<Type>(sums[m][n], a[run][m][1], b[2], b[3]);
        }
      }
    }
  }

  const uint32_t scratch_, unit_bytes_;  // where the first unit's is, and how far the next
  uint32_t x_row_;  // of which this lane gives the address to ldmatrix, of even 32 columns
  uint4 masks_[Shape::kRowUnits];
  OfRuns at_;  // where the next items lie
};

template <class Type, class Shape>
__device__ __forceinline__ void run_block(const Arguments& a, const Cut& cut, uint32_t shared) {
  using XRing = mma_units::XRing<Shape>;
  const int warps = cut.row_warps * cut.column_warps;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const Shared layout(Shape::kTokens, Shape::kRowUnits, cut.row_warps, cut.column_warps,
                      cut.scratch_quarters, cut.x_stages, cut.ring_bytes);
  mma_units::Steps steps(a, cut, Shape::kRowUnits);
  XRing x(a, cut, layout, shared);
  const bool copies_x = warp == warps;
  WeightOrders<Shape> orders(a, cut, steps, layout, shared);
  if (threadIdx.x % 32 == 0) {
    if (copies_x) {
      x.init(warps);
      orders.init();
    } else {
      WeightRing<Shape>::init(layout, shared, warp);
    }
    mbarrier_init_done();
  }
  if (copies_x) orders.give_first();
  __syncthreads();
  allow_next_kernel();
  if (copies_x) {
    FS_NO_UNROLL
    for (int i = 1; i < kBatches; ++i) orders.give();
    wait_for_last_kernel();
    int done = 0;
    x.fill_later(steps, [&] {
      if (++done % kBatch == 1) orders.give();
    });
    return;
  }

  WeightRing<Shape> weights(a, layout, shared, warp);
  // The first weights need not wait for the kernel before, which may write x. All others come after
  // x: it is there when all copies are that were started before.
  weights.fill_first();
  wait_for_last_kernel();
  x.fill_first(steps, warp, warps);
  weights.fill();

  const int row_warp = warp / cut.column_warps, column_warp = warp - row_warp * cut.column_warps;
  mma_units::Sums<Type, Shape, false> sums(a, cut, layout, row_warp, column_warp, shared);
  Multiplier<Type, Shape> multiplier(
      column_warp * Shape::kXUnitBytes,
      shared + layout.weights + warp * layout.warp_weights + cut.ring_bytes, cut.scratch_quarters);
  FS_NO_UNROLL
  while (!steps.ended()) {
    const uint32_t x_of_step = x.wait();
    typename Multiplier<Type, Shape>::Places places;
    weights.wait(places);
    // Beyond the last column there is nothing, and not zeros: they could meet an infinity.
    const bool inside = places[0].lines() > 0, is_fast = inside && !places[0].is_slow();
    if (is_fast) {
      multiplier.take(places);
    } else if (inside) {
      multiplier.multiply_slowly(places, x_of_step);
    }
    finish_reads();
    __syncwarp();
    weights.release();
    weights.refill();
    if (is_fast) multiplier.multiply(x_of_step);
    const bool fills_scratch = weights.waits_for_scratch();
    if (fills_scratch) finish_reads();
    __syncwarp();
    if (fills_scratch) weights.fill_wide();
    x.release();
    const mma_units::Steps here = steps;
    if (!steps.advance() && !steps.ended()) continue;
    sums.leave(multiplier.sums, here);
    mma_units::clear<Shape>(multiplier.sums);
  }
}

// Launch with any number of blocks up to the number of steps, plan.threads() and
// plan.shared_bytes().
template <class Type, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_kernel(const Arguments arguments, const Cut cut) {
  FS_DYNAMIC_SHARED(shared);
  run_block<Type, Shape>(arguments, cut, shared_address(shared));
}

template <class Shape, int least, int most>
constexpr Compiled compiled_in() {
  if constexpr (Shape::kTokens > least && Shape::kTokens <= most) {
    return {linear_kernel<Float16, Shape>, linear_kernel<BFloat16, Shape>};
  } else {
    return {};
  }
}

template <int least, int most>
const Compiled* compiled_linear() {
#define FS_COMPILED(tokens, row_units, warps) \
  compiled_in<Shape<tokens, row_units, warps>, least, most>(),
  static const Compiled compiled[] = {FS_TILED_BITMAP_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::tiled_bitmap
