// SPDX-License-Identifier: Apache-2.0
// The compiled grouped kernels of sparse_24. Each value type has a source file of its own
// (instances.cmake).
#pragma once
#include "cuda/experts/arguments.h"
#include "cuda/sparse_24/experts_plan.h"

namespace flashsparse::sparse_24 {

struct ExpertsCompiled {
  void (*float16)(experts::Arguments, experts::Cut);
  void (*bfloat16)(experts::Arguments, experts::Cut);
};

// Indexed like kExpertsShapes; for Values (values.cuh) of which experts_are_compiled() is true.
template <class Values>
const ExpertsCompiled* compiled_experts();

}  // namespace flashsparse::sparse_24
