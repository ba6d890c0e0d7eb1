// SPDX-License-Identifier: Apache-2.0
// The compiled decode kernels of exact_units. The shapes of each number of tokens and kind of unit
// have a source file of their own (instances.cmake), so that they compile in parallel.
#pragma once
#include <algorithm>

#include "cuda/exact_units/linear_arguments.h"
#include "cuda/exact_units/linear_plan.h"

namespace flashsparse::exact_units {

// The parameters of a launch; `early`: whether it begins before the kernel that writes x has ended.
inline mma_units::Cut cut_of(const LinearPlan& plan, int64_t rows, int64_t cols, bool early) {
  mma_units::Cut cut(plan, plan.weight_stages, rows, cols);
  // Each stage that is copied before x delays x, unless x is not there yet.
  cut.stages_before_x = std::min(early ? 2 : 1, plan.weight_stages);
  return cut;
}

using Compiled = void (*)(Arguments, mma_units::Cut);

// Indexed like kShapes; null where a shape is for other numbers of tokens, or not compiled for the
// kind.
template <int for_tokens, Kind kind>
const Compiled* compiled_linear();

}  // namespace flashsparse::exact_units
