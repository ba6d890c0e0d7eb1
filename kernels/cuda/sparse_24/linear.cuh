// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from sparse_24 by mma.sp, the decode kernel for 16-bit x: blocks are those of
// linear_block.cuh, and products those of unit_product.cuh.
#pragma once
#include "common/device.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/sparse_24/linear_block.cuh"
#include "cuda/sparse_24/linear_compiled.h"
#include "cuda/sparse_24/linear_shared.h"
#include "cuda/sparse_24/unit_product.cuh"
#include "cuda/sparse_24/values.cuh"
#include "cuda/sparse_24/weight_ring.cuh"

namespace flashsparse::sparse_24 {

template <class Type, class Shape, class Values_>
class Multiplier {
 public:
  using Values = Values_;
  using Ring = WeightRing<Shape, Values>;
  using Sum = float;
  static constexpr int kXBytes = 2;

  // `x_unit`: offset of the warp's unit of columns in a stage of x.
  __device__ __forceinline__ explicit Multiplier(uint32_t x_unit) : product_(x_unit) {
    mma_units::clear<Shape>(sums);
  }

  // Adds the product of units. `units`: shared address of this lane's bytes; `x`: of the stage.
  __device__ __forceinline__ void multiply(uint32_t units, uint32_t x) {
    typename Product::Vectors metadata;
    Product::load(metadata, units + Values::kLayout.metadata());
    product_.add(sums, units, metadata, x);
  }

  mma_units::SumsTile<Shape> sums;

 private:
  using Product = UnitProduct<Type, Shape, Values, UnitPlace<Values>>;

  const Product product_;
};

// Launch with at most as many blocks as there are steps, plan.threads() threads and
// plan.shared_bytes() of dynamic shared memory.
template <class Type, class Shape, class Values>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_kernel(const mma_units::Arguments arguments, const mma_units::Cut cut) {
  FS_DYNAMIC_SHARED(shared);
  run_block<Type, Shape, Multiplier<Type, Shape, Values>>(arguments, cut, shared_address(shared));
}

template <class Shape, class Values>
constexpr Compiled compiled_in() {
  if constexpr (is_compiled(Shape::kInfo, Values::kLayout, 2)) {
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
