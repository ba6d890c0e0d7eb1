// SPDX-License-Identifier: Apache-2.0
// The compiled decode kernels of hybrid_units. Each value type has a source file of its own
// (instances.cmake), so that they compile in parallel.
#pragma once
#include <algorithm>

#include "cuda/hybrid_units/linear_arguments.h"
#include "cuda/hybrid_units/linear_plan.h"
#include "cuda/hybrid_units/values.cuh"

namespace flashsparse::hybrid_units {

// The parameters of a launch; `early`: whether it begins before the kernel that writes x has ended.
inline mma_units::Cut cut_of(const LinearPlan& plan, int64_t rows, int64_t cols, bool early) {
  mma_units::Cut cut(plan, plan.weight_stages, rows, cols);
  // The first offsets have to arrive before a unit can be copied: x, if it is there, comes first.
  cut.stages_before_x = early ? std::min(2, plan.weight_stages) : 0;
  return cut;
}

struct Compiled {
  void (*float16)(Arguments, mma_units::Cut);
  void (*bfloat16)(Arguments, mma_units::Cut);
};

// Indexed like kShapes; null where Values (values.cuh) are not compiled for a shape.
template <class Values>
const Compiled* compiled_linear();

}  // namespace flashsparse::hybrid_units
