// SPDX-License-Identifier: Apache-2.0
// The compiled wgmma kernels of exact_units. The shapes of each number of tokens and kind of
// unit have a source file of their own (instances.cmake), so that they compile in parallel.
#pragma once
#include "common/tensor_map.h"
#include "cuda/exact_units/linear_arguments.h"

namespace flashsparse::exact_units {

using WgmmaCompiled = void (*)(WgmmaArguments, TensorMap);

// Indexed like kWgmmaShapes; null where a shape is for other numbers of tokens.
template <int for_tokens, Kind kind>
const WgmmaCompiled* compiled_wgmma();

}  // namespace flashsparse::exact_units
