// SPDX-License-Identifier: Apache-2.0
// The compiled grouped kernels of sparse_24 by wgmma. Each value type has a source file of its own
// (instances.cmake).
#pragma once
#include "common/tensor_map.h"
#include "cuda/experts/wgmma_arguments.h"

namespace flashsparse::sparse_24 {

struct ExpertsWgmmaCompiled {
  void (*float16)(experts::WgmmaArguments, TensorMap);
  void (*bfloat16)(experts::WgmmaArguments, TensorMap);
};

// Indexed like kExpertsWgmmaShapes; null where Values (values.cuh) are not compiled. For Values of
// which experts_are_compiled() is true.
template <class Values>
const ExpertsWgmmaCompiled* compiled_experts_wgmma();

}  // namespace flashsparse::sparse_24
