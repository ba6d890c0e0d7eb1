// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from sparse_24 by mma.sp, the decode kernel for W8A8: 8-bit values and 8-bit x
// are multiplied directly, 64 columns at a time, and the accumulators are multiplied by the scales
// of tokens and rows (linear_block.cuh).
#pragma once
#include "common/device.cuh"
#include "common/mma.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/sparse_24/codes.cuh"
#include "cuda/sparse_24/linear_block.cuh"
#include "cuda/sparse_24/linear_compiled.h"
#include "cuda/sparse_24/linear_shared.h"
#include "cuda/sparse_24/weight_ring.cuh"

namespace flashsparse::sparse_24 {

template <class Shape, class Codes>
class CodesMultiplier {
 public:
  using Values = typename Codes::Values;
  using Ring = WeightRing<Shape, Values>;
  using Sum = typename Codes::Sum;
  using Tile = mma_units::SumsTile<Shape, Sum>;
  static constexpr int kXBytes = 1;

  // `x_unit`: offset of the warp's unit of columns in a stage of x.
  __device__ __forceinline__ explicit CodesMultiplier(uint32_t x_unit) {
    const int lane = threadIdx.x % 32;
    x_row_ = x_unit + lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
    mma_units::clear<Shape>(sums);
  }

  // Adds the product of units. `units`: shared address of this lane's bytes; `x`: of the stage.
  __device__ __forceinline__ void multiply(uint32_t units, uint32_t x) {
    const uint32_t even = x + x_row_, odd = even ^ 64;  // for even and odd groups of 64 columns
    uint4 metadata[Shape::kRowUnits];
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      metadata[m] = load_shared<uint4>(units + m * place_bytes(kUnit) + kUnit.metadata());
    }
    FS_UNROLL
    for (int pair = 0; pair < kSteps / 2; ++pair) {
      uint32_t a[Shape::kRowUnits][4], words[Shape::kRowUnits];
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        const uint4& of = metadata[m];
        order_values<Codes>(
            a[m], load_shared<uint4>(units + m * place_bytes(kUnit) + pair * kVectorBytes));
        words[m] = order_metadata(pair == 0 ? of.x : pair == 1 ? of.y : pair == 2 ? of.z : of.w);
      }
      const uint32_t place = (pair % 2 ? odd : even) + pair / 2 * Shape::kPanelBytes;
      FS_UNROLL
      for (int n = 0; n < Shape::kTokens / 8; ++n) {
        uint32_t b[4];
        ldmatrix_x4(b, place + n * 8 * 128);
        FS_UNROLL
        for (int m = 0; m < Shape::kRowUnits; ++m) Codes::multiply(sums[m][n], a[m], b, words[m]);
      }
    }
  }

  Tile sums;

 private:
  static constexpr UnitLayout kUnit = Values::kLayout;

  uint32_t x_row_;  // offset of the row whose address this lane gives to ldmatrix, in even groups
};

// Launch with at most as many blocks as there are steps, plan.threads() threads and
// plan.shared_bytes() of dynamic shared memory. Empty if the GPU has no mma of this type.
template <class Type, class Shape, class Codes>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_codes_kernel(const mma_units::Arguments arguments, const mma_units::Cut cut) {
  if constexpr (Codes::kHasMma) {
    FS_DYNAMIC_SHARED(shared);
    using Narrow = CodesShape<Shape>;
    run_block<Type, Narrow, CodesMultiplier<Narrow, Codes>>(arguments, cut, shared_address(shared));
  }
}

template <class Shape, class Codes>
constexpr Compiled compiled_codes_in() {
  if constexpr (is_compiled(Shape::kInfo, Codes::Values::kLayout, 1)) {
    return {linear_codes_kernel<Float16, Shape, Codes>,
            linear_codes_kernel<BFloat16, Shape, Codes>};
  } else {
    return {};
  }
}

template <class Codes>
const Compiled* compiled_codes_linear() {
#define FS_COMPILED(tokens, row_units, warps) \
  compiled_codes_in<Shape<tokens, row_units, warps>, Codes>(),
  static const Compiled compiled[] = {FS_SPARSE_24_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::sparse_24
