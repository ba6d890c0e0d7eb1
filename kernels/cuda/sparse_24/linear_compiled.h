// SPDX-License-Identifier: Apache-2.0
// The compiled linear kernels of sparse_24. Each value type has a source file of its own, so that
// they compile side by side.
#pragma once
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/sparse_24/linear_plan.h"

namespace flashsparse::sparse_24 {

struct Compiled {
  void (*float16)(mma_units::Arguments, mma_units::Cut);
  void (*bfloat16)(mma_units::Arguments, mma_units::Cut);
};

// By the index of kShapes; null where values of this kind (values.cuh) are not compiled in a shape.
template <class Values>
const Compiled* compiled_linear();

// The same of codes (codes.cuh) by x of such codes.
template <class Codes>
const Compiled* compiled_codes_linear();

}  // namespace flashsparse::sparse_24
