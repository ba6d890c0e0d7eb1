// SPDX-License-Identifier: Apache-2.0
// The compiled linear kernels of sparse_24. Each value type has a source file of its own, so that
// they compile side by side.
#pragma once
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/sparse_24/linear_plan.h"

namespace flashsparse::sparse_24 {

template <class Arguments>
struct CompiledFor {
  void (*float16)(Arguments, mma_units::Cut);
  void (*bfloat16)(Arguments, mma_units::Cut);
};
using Compiled = CompiledFor<mma_units::Arguments>;
using CodesCompiled = CompiledFor<mma_units::CodesArguments>;

// By the index of kShapes; null where values of this kind (values.cuh) are not compiled in a shape.
template <class Values>
const Compiled* compiled_linear();

// The same of codes (codes.cuh) by x of such codes.
template <class Codes>
const CodesCompiled* compiled_codes_linear();

}  // namespace flashsparse::sparse_24
