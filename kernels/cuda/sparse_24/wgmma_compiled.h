// SPDX-License-Identifier: Apache-2.0
// The compiled wgmma kernels of sparse_24. Each value type has a source file of its own
// (instances.cmake), so that they compile in parallel.
#pragma once
#include "common/tensor_map.h"
#include "cuda/mma_units/wgmma_arguments.h"

namespace flashsparse::sparse_24 {

struct WgmmaCompiled {
  void (*float16)(mma_units::WgmmaArguments, TensorMap);
  void (*bfloat16)(mma_units::WgmmaArguments, TensorMap);
};

// Indexed like kWgmmaShapes; null where Values (values.cuh) are not compiled.
template <class Values>
const WgmmaCompiled* compiled_wgmma();

// The same for W8A8 (codes.cuh).
template <class Codes>
const WgmmaCompiled* compiled_codes_wgmma();

}  // namespace flashsparse::sparse_24
