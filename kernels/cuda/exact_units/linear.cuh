// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from exact_units by mma, or of 2:4 by mma.sp, the decode kernel (few tokens):
// one launch that reads the weight once, in its stored layout, and x once per block.
//
// A block has a grid of row_warps x column_warps compute warps. In each step a warp multiplies
// row_units vertically adjacent units, which it copies through its own ring in shared memory
// (weight_ring.cuh) and decodes in registers (decode.cuh), by x of the same columns, which all
// warps of the block share and one more warp copies. Then it adds the products of the units'
// exceptions: they are few, and all they need is in shared memory. At the end of a row tile (a
// `set`: row_warps * row_units units of rows) the warps along the columns add up their
// accumulators, and rows are scaled (finish.cuh). Warps synchronize only on the stages of x, so
// they drift apart and keep copies in flight.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/mma_sparse.cuh"
#include "cuda/exact_units/decode.cuh"
#include "cuda/exact_units/finish.cuh"
#include "cuda/exact_units/linear_compiled.h"
#include "cuda/exact_units/linear_plan.h"
#include "cuda/exact_units/linear_shared.h"
#include "cuda/exact_units/weight_ring.cuh"
#include "cuda/mma_units/steps.cuh"
#include "cuda/mma_units/sums.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/mma_units/x_ring.cuh"

namespace flashsparse::exact_units {

// Compile-time counterpart of an entry of kShapes.
template <int kTokens_,    // of y at most
          int kRowUnits_,  // that a warp multiplies in a step
          int kWarps_,     // compute warps of a block at most
          Kind kKind_>
struct Shape {
  static constexpr ShapeInfo kInfo{kTokens_, kRowUnits_, kWarps_};
  static constexpr int kTokens = kTokens_, kRowUnits = kRowUnits_;
  static constexpr Kind kKind = kKind_;
  static constexpr int kThreads = (kWarps_ + 1) * 32;
  static constexpr uint32_t kPanelBytes = kTokens * 128;  // of x: 64 columns
  static constexpr uint32_t kXUnitBytes = kPanels * kPanelBytes;
};

template <class Shape>
class Multiplier {
 public:
  using Tile = mma_units::SumsTile<Shape>;

  // `x_unit`: offset of the warp's unit of columns in a stage of x.
  __device__ __forceinline__ Multiplier(uint32_t x_unit, int unit_slots)
      : x_unit_(x_unit), unit_slots_(unit_slots) {
    mma_units::clear<Shape>(sums);
  }

  // Adds the product of units. `units`: shared address of this lane's bytes; `x`: of the stage.
  __device__ __forceinline__ void multiply(uint32_t units, uint32_t x) {
    const int lane = threadIdx.x % 32;
    const uint32_t even = x + x_unit_ + lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
    if constexpr (Shape::kKind == Kind::kDense) {
      multiply_dense(units, even);
    } else {
      multiply_24(units, even);
    }
  }

  // Adds the products of the units' slots. `slots`: shared address of the first unit's.
  __device__ __forceinline__ void add_exceptions(uint32_t slots, uint32_t x) {
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      FS_NO_UNROLL
      for (int i = 0; i < unit_slots_; ++i) {
        const auto slot = load_shared<uint32_t>(slots + (m * unit_slots_ + i) * 4);
        if (slot == 0) break;
        if (slot_row(slot) % 8 == threadIdx.x % 32 / 4) add(sums[m], slot, x + x_unit_);
      }
    }
  }

  Tile sums;

 private:
  static constexpr int kUnit = unit_bytes(Shape::kKind);
  // Panels of 2:4 whose loads may be in flight at once. Both, with the sums of 32 tokens, take more
  // registers on sm_100 than there are.
  static constexpr int kPanelsAtOnce = Shape::kTokens < 32 ? 2 : 1;

  // The words of a lane's weights in a panel of each unit.
  using Words = uint4[Shape::kRowUnits][kPanelVectors];

  static __device__ __forceinline__ void load(Words& words, uint32_t units, int panel) {
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      FS_UNROLL
      for (int i = 0; i < kPanelVectors; ++i) {
        words[m][i] =
            load_shared<uint4>(units + m * kUnit + (panel * kPanelVectors + i) * kVectorBytes);
      }
    }
  }

  // `even`: shared address that this lane gives to ldmatrix for the first 32 columns of a panel of
  // x; bit 6 of it tells the other 32.
  __device__ __forceinline__ void multiply_dense(uint32_t units, uint32_t even) {
    FS_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      Words words;
      load(words, units, panel);
      FS_UNROLL
      for (int half = 0; half < 2; ++half) {  // 32 columns, of which ldmatrix loads x at once
        uint32_t a[Shape::kRowUnits][2][4];
        FS_UNROLL
        for (int m = 0; m < Shape::kRowUnits; ++m) {
          decode(words[m], half * 2, a[m][0]);
          decode(words[m], half * 2 + 1, a[m][1]);
        }
        const uint32_t from = (even ^ half * 64) + panel * Shape::kPanelBytes;
        FS_UNROLL
        for (int n = 0; n < Shape::kTokens / 8; ++n) {
          uint32_t b[4];
          ldmatrix_x4(b, from + n * 8 * 128);
          FS_UNROLL
          for (int m = 0; m < Shape::kRowUnits; ++m) {
            mma_m16n8k16<BFloat16>(sums[m][n], a[m][0], b[0], b[1]);
            mma_m16n8k16<BFloat16>(sums[m][n], a[m][1], b[2], b[3]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_24(uint32_t units, uint32_t even) {
    uint4 metadata[Shape::kRowUnits];
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      metadata[m] = load_shared<uint4>(units + m * kUnit + exact_units::metadata(Kind::k24));
    }
    FS_UNROLL_BY(kPanelsAtOnce)
    for (int panel = 0; panel < panels(Kind::k24); ++panel) {
      Words words;
      load(words, units, panel);
      FS_UNROLL
      for (int pair = 0; pair < 2; ++pair) {  // of steps, whose x is in one panel
        uint32_t places[Shape::kRowUnits];
        FS_UNROLL
        for (int m = 0; m < Shape::kRowUnits; ++m) {
          const uint4& of = metadata[m];
          places[m] = panel == 0 ? (pair == 0 ? of.x : of.y) : (pair == 0 ? of.z : of.w);
        }
        const uint32_t x = even + (panel * 2 + pair) * Shape::kPanelBytes;
        multiply_step<0>(words, pair * 2, x, places);
        multiply_step<1>(words, pair * 2 + 1, x ^ 64, places);
      }
    }
  }

  template <int half>
  __device__ __forceinline__ void multiply_step(const Words& words, int step, uint32_t x,
                                                const uint32_t (&places)[Shape::kRowUnits]) {
    uint32_t a[Shape::kRowUnits][4];
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) decode(words[m], step, a[m]);
    FS_UNROLL
    for (int n = 0; n < Shape::kTokens / 8; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, x + n * 8 * 128);
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        mma_sparse_m16n8k32<BFloat16, half>(sums[m][n], a[m], b, places[m]);
      }
    }
  }

  // Adds the products of one weight and this lane's tokens.
  static __device__ __forceinline__ void add(float (&to)[Shape::kTokens / 8][4], uint32_t slot,
                                             uint32_t x) {
    const float weight = to_float<BFloat16>(slot_bits(slot));
    const uint32_t column = slot_column(slot), chunk = column % kPanelCols / 8;
    const uint32_t from = x + column / kPanelCols * Shape::kPanelBytes + column % 8 * 2;
    const bool is_lower = slot_row(slot) >= 8;
    FS_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t token = threadIdx.x % 4 * 2 + i;
      FS_UNROLL
      for (int n = 0; n < Shape::kTokens / 8; ++n) {
        const float one = to_float<BFloat16>(
            load_shared<uint16_t>(from + (token + n * 8) * 128 + (chunk ^ token) * 16));
        if (is_lower) {
          to[n][2 + i] = fmaf(weight, one, to[n][2 + i]);
        } else {
          to[n][i] = fmaf(weight, one, to[n][i]);
        }
      }
    }
  }

  const uint32_t x_unit_;
  const int unit_slots_;
};

template <class Shape>
__device__ __forceinline__ void run_block(const Arguments& a, const mma_units::Cut& cut,
                                          uint32_t shared) {
  const int warps = cut.row_warps * cut.column_warps, unit_slots = a.exceptions.unit_slots;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int row_warp = cut.by_column_warps(warp);
  const int column_warp = warp - row_warp * cut.column_warps;
  const mma_units::Shared layout(
      Shape::kTokens, Shape::kRowUnits, cut.row_warps, cut.column_warps, cut.x_stages,
      ring_bytes(Shape::kKind, Shape::kRowUnits, unit_slots, cut.weight_stages), 2);
  mma_units::Steps steps(cut);
  mma_units::XRing<Shape> x(a, cut, layout, shared);
  const bool copies_x = warp == warps;
  WeightRing<Shape> weights(a, cut, steps, row_warp, column_warp,
                            shared + layout.weights + warp * layout.weight_ring);
  // Weights need not wait for the other warps, nor for the preceding kernel, which may write x.
  // The barrier of the first x completes only when all earlier cp.async of a thread have.
  const int before = min(cut.stages_before_x, steps.left() - 1);
  if (copies_x) {
    if (threadIdx.x % 32 == 0) x.init(warps + 1);
  } else {
    FS_NO_UNROLL
    for (int i = 0; i < before; ++i) weights.refill();
  }
  __syncthreads();
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  x.fill_first(steps, warp, warps + 1);
  if (copies_x) {
    x.fill_later(steps, [] {});
    return;
  }
  FS_NO_UNROLL
  for (int i = before; i < cut.weight_stages; ++i) weights.refill();

  mma_units::Sums<BFloat16, Shape, false, TokenScales::kNone> sums(a, cut, layout, row_warp,
                                                                   column_warp, shared);
  Finish<Shape> finish(a, cut, row_warp, column_warp);
  finish.expect(steps.set());
  Multiplier<Shape> multiplier(column_warp * Shape::kXUnitBytes, unit_slots);
  FS_NO_UNROLL
  while (!steps.ended()) {
    const uint32_t x_of_step = x.wait();
    weights.wait();
    // Skips units past the last column, instead of zero-filling x: 0 * inf would give NaN.
    if (steps.inside(column_warp)) {
      multiplier.multiply(weights.units(), x_of_step);
      multiplier.add_exceptions(weights.slots(), x_of_step);
    }
    weights.advance();
    __syncwarp();
    weights.refill();
    x.release();
    const mma_units::Steps here = steps;
    if (!steps.advance() && !steps.ended()) continue;
    sums.leave(multiplier.sums, here, finish);
    if (!steps.ended()) finish.expect(steps.set());
    mma_units::clear<Shape>(multiplier.sums);
  }
}

// Launch with at most as many blocks as there are steps, plan.threads() threads and
// plan.shared_bytes() of dynamic shared memory.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_kernel(const Arguments arguments, const mma_units::Cut cut) {
  FS_DYNAMIC_SHARED(shared);
  run_block<Shape>(arguments, cut, shared_address(shared));
}

template <class Shape, int tokens>
constexpr Compiled compiled_in() {
  if constexpr (tokens == Shape::kTokens && is_compiled(Shape::kInfo, Shape::kKind))
    return linear_kernel<Shape>;
  return nullptr;
}

template <int for_tokens, Kind kind>
const Compiled* compiled_linear() {
#define FS_COMPILED(tokens, row_units, warps) \
  compiled_in<Shape<tokens, row_units, warps, kind>, for_tokens>(),
  static const Compiled compiled[] = {FS_EXACT_UNITS_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::exact_units
