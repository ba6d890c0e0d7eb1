// SPDX-License-Identifier: Apache-2.0
// The compiled wgmma kernels of hybrid_units. Each value type has a source file of its own
// (instances.cmake).
#pragma once
#include "common/tensor_map.h"
#include "cuda/hybrid_units/linear_arguments.h"
#include "cuda/hybrid_units/values.cuh"

namespace flashsparse::hybrid_units {

struct WgmmaCompiled {
  void (*float16)(WgmmaArguments, TensorMap);
  void (*bfloat16)(WgmmaArguments, TensorMap);
};

// Indexed like kWgmmaShapes; null where Values (values.cuh) are not compiled. For Values of which
// has_wgmma() is true.
template <class Values>
const WgmmaCompiled* compiled_wgmma();

}  // namespace flashsparse::hybrid_units
