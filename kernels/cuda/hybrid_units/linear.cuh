// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from hybrid_units, the decode kernel (few tokens): a block is one of sparse_24's
// (cuda/sparse_24/linear_block.cuh). A warp multiplies its units as if all were 2:4, of dense ones
// the first half. Then it multiplies the second half of each dense one. So a step has no branch,
// and the loads and products of several steps overlap.
#pragma once
#include "common/device.cuh"
#include "cuda/hybrid_units/linear_compiled.h"
#include "cuda/hybrid_units/linear_plan.h"
#include "cuda/hybrid_units/linear_shared.h"
#include "cuda/hybrid_units/weight_ring.cuh"
#include "cuda/mma_units/sums_tile.cuh"
#include "cuda/sparse_24/linear_block.cuh"
#include "cuda/sparse_24/unit_product.cuh"
#include "cuda/sparse_24/values.cuh"

namespace flashsparse::hybrid_units {

template <class Shape>
struct OneUnit : Shape {
  static constexpr int kRowUnits = 1;
};

template <class Type, class Shape, class Values_>
class Multiplier {
 public:
  using Values = Values_;
  using Ring = WeightRing<Shape, Values>;
  using Sum = float;
  static constexpr int kXBytes = 2;

  // `x_unit`: offset of the warp's unit of columns in a stage of x.
  __device__ __forceinline__ explicit Multiplier(uint32_t x_unit)
      : product_(x_unit), second_product_(x_unit) {
    mma_units::clear<Shape>(sums);
  }

  // Adds the product of units. `x`: shared address of the stage.
  __device__ __forceinline__ void multiply(const StepUnits& units, uint32_t x) {
    typename Product::Vectors metadata;
    Product::load(metadata, units.place + kAfterFirst);  // of a dense unit these are values
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      if (units.is_dense(m)) metadata[m] = words(kFirstHalf);
    }
    product_.add(sums, units.place, metadata, x);
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      if (!units.is_dense(m)) continue;
      const uint4 second[1] = {words(kSecondHalf)};
      auto& own = reinterpret_cast<typename SecondProduct::Tile&>(sums[m]);
      second_product_.add(own, units.place + m * Place::kBytes + kAfterFirst, second, x);
    }
  }

  mma_units::SumsTile<Shape> sums;

 private:
  using Place = UnitPlace<Values>;
  using Product = sparse_24::UnitProduct<Type, Shape, Values, Place>;
  using SecondProduct = sparse_24::UnitProduct<Type, OneUnit<Shape>, Values, SecondPlace<Values>>;
  static constexpr uint32_t kAfterFirst = Values::kLayout.metadata();  // the first half, or all

  static __device__ __forceinline__ uint4 words(uint32_t word) {
    return make_uint4(word, word, word, word);
  }

  const Product product_;
  const SecondProduct second_product_;
};

// Launch with at most as many blocks as there are steps, plan.threads() threads and
// plan.shared_bytes() of dynamic shared memory.
template <class Type, class Shape, class Values>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    linear_kernel(const Arguments arguments, const mma_units::Cut cut) {
  FS_DYNAMIC_SHARED(shared);
  sparse_24::run_block<Type, Shape, Multiplier<Type, Shape, Values>>(arguments, cut,
                                                                     shared_address(shared));
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
  compiled_in<sparse_24::Shape<tokens, row_units, warps>, Values>(),
  static const Compiled compiled[] = {FS_HYBRID_UNITS_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::hybrid_units
