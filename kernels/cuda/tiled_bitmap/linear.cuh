// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from tiled_bitmap, the decode kernel (few tokens): one launch that reads the
// weight once, in its stored layout, and x once per block.
//
// A block has a grid of row_warps x column_warps compute warps. In each step a warp multiplies
// row_units vertically adjacent units, which it copies through its own ring in shared memory
// (weight_ring.cuh): it decodes the nonzeros into A operands (kept_values.cuh, kept_codes.cuh) and
// multiplies them by x of the same columns, which all warps of the block share. One more warp
// copies x and computes the copy descriptors of all rings (weight_orders.cuh). At the end of a row
// tile (a `set`: row_warps * row_units units of rows) the warps along the columns add up their
// accumulators. Warps synchronize only on the stages of x, so they drift apart and keep copies in
// flight.
#pragma once
#include <type_traits>

#include "common/bulk_copy.cuh"
#include "common/device.cuh"
#include "common/mma.cuh"
#include "cuda/mma_units/steps.cuh"
#include "cuda/mma_units/sums.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/mma_units/x_ring.cuh"
#include "cuda/tiled_bitmap/kept_codes.cuh"
#include "cuda/tiled_bitmap/kept_values.cuh"
#include "cuda/tiled_bitmap/linear_arguments.h"
#include "cuda/tiled_bitmap/linear_compiled.h"
#include "cuda/tiled_bitmap/linear_plan.h"
#include "cuda/tiled_bitmap/linear_shared.h"
#include "cuda/tiled_bitmap/spread_items.cuh"
#include "cuda/tiled_bitmap/weight_orders.cuh"
#include "cuda/tiled_bitmap/weight_ring.cuh"

namespace flashsparse::tiled_bitmap {

// Compile-time counterpart of an entry of shapes_of(operands).
template <Operands operands,
          int kTokens_,    // of y at most
          int kRowUnits_,  // that a warp multiplies in a step
          int kWarps_,     // compute warps of a block at most
          bool spreads>    // whether units are spread before they are multiplied
struct Shape {
  using Sum = std::conditional_t<operands == Operands::kRounded, uint32_t, float>;
  static constexpr Operands kOperands = operands;
  static constexpr ShapeInfo kInfo{kTokens_, kRowUnits_, kWarps_, spreads};
  static constexpr bool kSpreads = spreads;
  static constexpr int kTokens = kTokens_, kRowUnits = kRowUnits_;
  static constexpr int kThreads = (kWarps_ + 1) * 32;
  static constexpr uint32_t kPanelBytes = kTokens * 128;  // of x: 64 columns, or 128 of int8
  static constexpr uint32_t kXUnitBytes = kUnitCols * x_bytes(operands) / 128 * kPanelBytes;
};

template <class Type, class Shape>
using Kept =
    std::conditional_t<Shape::kOperands == Operands::kNative,
                       KeptValues<std::conditional_t<Shape::kSpreads, SpreadItems, RingItems>>,
                       KeptCodes<Type, Shape::kOperands == Operands::kRounded>>;

template <class Type, class Shape>
class Multiplier {
 public:
  using Tile = mma_units::SumsTile<Shape, typename Shape::Sum>;
  using Places = Place[Shape::kRowUnits];

  // `x_unit`: offset of the warp's unit of columns in a stage of x. `scratch`: the warp's, of which
  // each unit has `quarters`.
  __device__ __forceinline__ Multiplier(uint32_t x_unit, uint32_t scratch, uint32_t quarters)
      : scratch_(scratch), unit_bytes_(scratch_bytes(quarters)) {
    const int lane = threadIdx.x % 32;
    x_row_ = x_unit + lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
    mma_units::clear<Shape>(sums);
  }

  // Adds the product of a step's units, and releases their space in the ring as soon as they have
  // been read. `x`: shared address of the stage.
  template <class Weights>
  __device__ __forceinline__ void step(const Places& places, uint32_t x, Weights& weights) {
    // Skips units past the last column, instead of zero-filling x: 0 * inf would give NaN.
    const bool is_there = places[0].lines() > 0;
    if (is_there) {
      take(places);
    } else if constexpr (Shape::kOperands == Operands::kNative) {
      if (places[0].is_not_copied()) multiply_slowly(weights, x);
    }
    if constexpr (Shape::kSpreads) give_back(weights);
    if (is_there) multiply(x);
    if constexpr (Shape::kSpreads) {
      __syncwarp();  // before the scratch is overwritten
    } else {
      give_back(weights);
    }
  }

  Tile sums;

 private:
  using Masks = uint32_t[kRuns][Shape::kRowUnits];

  template <class Weights>
  static __device__ __forceinline__ void give_back(Weights& weights) {
    finish_reads();
    __syncwarp();
    weights.release();
    weights.refill();
  }

  // Loads masks and run starts of a step's units, and spreads their items if the shape does.
  __device__ __forceinline__ void take(const Places& places) {
    const int lane = threadIdx.x % 32;
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      const uint32_t head = places[m].address(), values = head + kHeadBytes;
      const uint32_t items = Shape::kSpreads ? scratch_ + m * unit_bytes_ : values;
      masks_[m] = load_shared<uint4>(head + lane * 16);
      const uint32_t starts = load_shared<uint32_t>(head + kMaskLines * kLineBytes + lane * 4);
      runs_[0][m].begin(items, starts & 0xffff);
      runs_[1][m].begin(items, starts >> 16);
      if constexpr (Shape::kSpreads) spread_items(values, places[m].lines() - kHeadLines, items);
    }
  }

  // Adds the product of the units that take() has prepared.
  __device__ __forceinline__ void multiply(uint32_t x) {
    const uint32_t even = x + x_row_, odd = even ^ 64;  // halves of a panel
    if constexpr (Shape::kOperands == Operands::kNative) {
      FS_UNROLL
      for (auto& of_run : runs_) {
        for (auto& run : of_run) run.load();
      }
    }
    // The two runs are interleaved: each is a chain of dependent instructions.
    multiply_word<0>(even, odd);
    multiply_word<1>(even, odd);
  }

  template <int word>
  __device__ __forceinline__ void multiply_word(uint32_t even, uint32_t odd) {
    Masks masks;
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      masks[0][m] = word == 0 ? masks_[m].x : masks_[m].y;
      masks[1][m] = word == 0 ? masks_[m].z : masks_[m].w;
    }
    if constexpr (Shape::kOperands == Operands::kRounded) {
      multiply_part<0, word == 1>(masks, word == 0 ? even : odd);
    } else {
      multiply_part<0, false>(masks, even + word * Shape::kPanelBytes);
      multiply_part<1, word == 1>(masks, odd + word * Shape::kPanelBytes);
    }
  }

  // Adds the product of units that were not copied.
  template <class Weights>
  __device__ __forceinline__ void multiply_slowly(const Weights& weights, uint32_t x) {
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      SlowValues values(weights.in_memory(m));
      FS_NO_UNROLL
      for (int columns = 0; columns < 2 * kMaskWords; ++columns) {
        uint32_t a[2][4];
        values.next(columns, a);
        const uint32_t at = ((x + x_row_) ^ columns % 2 * 64) + columns / 2 * Shape::kPanelBytes;
        FS_UNROLL
        for (int n = 0; n < Shape::kTokens / 8; ++n) {
          uint32_t b[4];
          ldmatrix_x4(b, at + n * 8 * 128);
          add_product(sums[m][n], a[0], b[0], b[1]);
          add_product(sums[m][n], a[1], b[2], b[3]);
        }
      }
    }
  }

  // Multiplies half a panel of each run: 32 columns, or 64 of int8 x.
  template <int part, bool is_last>
  __device__ __forceinline__ void multiply_part(const Masks& masks, uint32_t x) {
    constexpr uint32_t kRunBytes = Shape::kXUnitBytes / kRuns;  // of x
    uint32_t a[kRuns][Shape::kRowUnits][2][4];
    FS_UNROLL
    for (int run = 0; run < kRuns; ++run) {
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        runs_[run][m].template next<part, is_last>(masks[run][m], a[run][m]);
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
          add_product(sums[m][n], a[run][m][0], b[0], b[1]);
          add_product(sums[m][n], a[run][m][1], b[2], b[3]);
        }
      }
    }
  }

  static __device__ __forceinline__ void add_product(float (&d)[4], const uint32_t (&a)[4],
                                                     uint32_t b0, uint32_t b1) {
    mma_m16n8k16<Type>(d, a, b0, b1);
  }
  static __device__ __forceinline__ void add_product(uint32_t (&d)[4], const uint32_t (&a)[4],
                                                     uint32_t b0, uint32_t b1) {
    mma_m16n8k32(d, a, b0, b1);
  }

  const uint32_t scratch_, unit_bytes_;  // the first unit's; distance to the next unit's
  uint32_t x_row_;  // offset of the row whose address this lane gives to ldmatrix, in the first
                    // half of a panel
  uint4 masks_[Shape::kRowUnits];
  Kept<Type, Shape> runs_[kRuns][Shape::kRowUnits];
};

template <class Type, class Shape>
__device__ __forceinline__ void run_block(const Arguments& a, const Cut& cut, uint32_t shared) {
  constexpr Operands kOperands = Shape::kOperands;
  constexpr bool kScaled = kOperands != Operands::kNative;
  constexpr bool kNarrowX = kOperands == Operands::kRounded;
  constexpr TokenScales kTokenScales = kNarrowX ? TokenScales::kAlways : TokenScales::kNone;
  using XRing = mma_units::XRing<Shape>;
  const int warps = cut.row_warps * cut.column_warps;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const Shared layout(Shape::kTokens, Shape::kRowUnits, cut.row_warps, cut.column_warps,
                      cut.scratch_quarters, cut.x_stages, cut.ring_bytes, kOperands);
  mma_units::Steps steps(cut);
  XRing x(a, cut, layout, shared);
  const bool copies_x = warp == warps;
  WeightOrders<Shape> orders(a, cut, steps, layout, shared);
  if (copies_x) orders.begin();
  if (threadIdx.x == 0) x.init(warps);
  if (copies_x && threadIdx.x % 32 == 0) orders.init();
  __syncthreads();
  griddepcontrol_launch_dependents();
  if (copies_x) {
    orders.publish_first();
    FS_NO_UNROLL
    for (int i = 1; i < kBatches; ++i) orders.publish();
    griddepcontrol_wait();
    int done = 0;
    x.fill_later(steps, [&] {
      if (++done % kBatch == 1) orders.publish();
    });
    return;
  }

  WeightRing<Shape> weights(a, layout, shared, warp);
  // The first weights need not wait for the preceding kernel, which may write x. Where x is there,
  // it comes first, as its barriers complete only when all earlier cp.async of a thread have.
  if (!cut.x_first) weights.fill_first();
  griddepcontrol_wait();
  x.fill_first(steps, warp, warps);
  if (cut.x_first) weights.fill_first();
  weights.fill();

  const int row_warp = cut.by_column_warps(warp);
  const int column_warp = warp - row_warp * cut.column_warps;
  mma_units::Sums<Type, Shape, kScaled, kTokenScales, typename Shape::Sum> sums(
      a, cut, layout, row_warp, column_warp, shared,
      kOperands == Operands::kCodes ? 1 / kWidenedByte<Type> : 1);
  sums.expect(steps.set());
  Multiplier<Type, Shape> multiplier(
      column_warp * Shape::kXUnitBytes,
      shared + layout.weights + warp * layout.warp_weights + cut.ring_bytes, cut.scratch_quarters);
  FS_NO_UNROLL
  while (!steps.ended()) {
    const uint32_t x_of_step = x.wait();
    typename Multiplier<Type, Shape>::Places places;
    weights.wait(places);
    multiplier.step(places, x_of_step, weights);
    x.release();
    const mma_units::Steps here = steps;
    if (!steps.advance() && !steps.ended()) continue;
    sums.leave(multiplier.sums, here);
    if (!steps.ended()) sums.expect(steps.set());
    mma_units::clear<Shape>(multiplier.sums);
  }
}

// Launch with at most as many blocks as there are steps, plan.threads() threads and
// plan.shared_bytes() of dynamic shared memory.
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

template <Operands operands, int least, int most>
const Compiled* compiled_linear() {
#define FS_COMPILED(tokens, row_units, warps, spreads) \
  compiled_in<Shape<operands, tokens, row_units, warps, spreads != 0>, least, most>(),
  if constexpr (operands == Operands::kNative) {
    static const Compiled compiled[] = {FS_TILED_BITMAP_SHAPES(FS_COMPILED)};
    return compiled;
  } else {
    static const Compiled compiled[] = {FS_TILED_BITMAP_CODES_SHAPES(FS_COMPILED)};
    return compiled;
  }
#undef FS_COMPILED
}

}  // namespace flashsparse::tiled_bitmap
