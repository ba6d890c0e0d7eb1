// SPDX-License-Identifier: Apache-2.0
// The compiled decode kernels of sparse_24. Each value type has a source file of its own
// (instances.cmake), so that they compile in parallel.
#pragma once
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/sparse_24/linear_plan.h"

namespace flashsparse::sparse_24 {

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
