// SPDX-License-Identifier: Apache-2.0
// The compiled decode kernels of sparse_24. Each value type has a source file of its own
// (instances.cmake), so that they compile in parallel.
#pragma once
#include <algorithm>

#include "cuda/mma_units/linear_arguments.h"
#include "cuda/sparse_24/linear_plan.h"

namespace flashsparse::sparse_24 {

// The parameters of a launch; `early`: whether it begins before the kernel that writes x has ended.
inline mma_units::Cut cut_of(const LinearPlan& plan, int64_t rows, int64_t cols, bool early) {
  mma_units::Cut cut(plan, plan.weight_stages, rows, cols);
  // Each stage that is copied before x delays x, unless x is not there yet. The ring has no more.
  const int before_x = plan.x_bytes == 1 ? plan.weight_stages : early ? 2 : 1;
  cut.stages_before_x = std::min(before_x, plan.weight_stages);
  return cut;
}

struct Compiled {
  void (*float16)(mma_units::Arguments, mma_units::Cut);
  void (*bfloat16)(mma_units::Arguments, mma_units::Cut);
};

// Indexed like kShapes; null where Values (values.cuh) are not compiled for a shape.
template <class Values>
const Compiled* compiled_linear();

// The same for W8A8 (codes.cuh).
template <class Codes>
const Compiled* compiled_codes_linear();

}  // namespace flashsparse::sparse_24
