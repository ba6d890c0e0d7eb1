// SPDX-License-Identifier: Apache-2.0
// The compiled wgmma kernels of exact_units. The shapes of each number of tokens and kind of
// unit have a source file of their own (instances.cmake), so that they compile in parallel.
#pragma once
#include "common/tensor_map.h"
#include "cuda/exact_units/linear_arguments.h"
#include "cuda/exact_units/wgmma_plan.h"

namespace flashsparse::exact_units {

using WgmmaCompiled = void (*)(WgmmaArguments, TensorMap);

// Indexed like kWgmmaShapes; null where a shape is for other numbers of tokens.
template <int for_tokens, Kind kind>
const WgmmaCompiled* compiled_wgmma();

template <Kind kind>
WgmmaCompiled compiled_for(const WgmmaPlan& plan) {
  const int tokens = plan.info().tokens;
  return (tokens == 32   ? compiled_wgmma<32, kind>()
          : tokens == 64 ? compiled_wgmma<64, kind>()
                         : compiled_wgmma<128, kind>())[plan.shape];
}
// The kernel of a plan.
inline WgmmaCompiled compiled(const WgmmaPlan& plan) {
  return plan.kind == Kind::kDense ? compiled_for<Kind::kDense>(plan)
                                   : compiled_for<Kind::k24>(plan);
}

}  // namespace flashsparse::exact_units
