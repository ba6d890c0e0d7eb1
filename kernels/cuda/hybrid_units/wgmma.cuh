// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias from hybrid_units by wgmma.sp, the prefill kernel on Hopper. All is as in that
// of sparse_24 (cuda/sparse_24/wgmma.cuh), but for how units are loaded (wgmma_weights.cuh) and
// multiplied (wgmma_operand.cuh).
#pragma once
#include "cuda/hybrid_units/wgmma_compiled.h"
#include "cuda/hybrid_units/wgmma_operand.cuh"
#include "cuda/hybrid_units/wgmma_plan.h"
#include "cuda/sparse_24/wgmma.cuh"

namespace flashsparse::hybrid_units {

// Compile-time counterpart of an entry of kWgmmaShapes.
template <int tokens, int groups>
struct WgmmaShape : sparse_24::WgmmaShape<tokens, groups> {
  using Arguments = WgmmaArguments;
};

template <class Type, class Values, int tokens, int groups, int bits>
constexpr auto compiled_wgmma_kernel() -> decltype(WgmmaCompiled::float16) {
  if constexpr (wgmma_is_compiled({{tokens, groups}, bits}, Values::kLayout)) {
    return sparse_24::wgmma_kernel<Type, WgmmaOperand<Type, Values>, WgmmaShape<tokens, groups>>;
  } else {
    return nullptr;
  }
}

template <class Values>
const WgmmaCompiled* compiled_wgmma() {
#define FS_COMPILED(tokens, groups, bits)                          \
  {compiled_wgmma_kernel<Float16, Values, tokens, groups, bits>(), \
   compiled_wgmma_kernel<BFloat16, Values, tokens, groups, bits>()},
  static const WgmmaCompiled compiled[] = {FS_HYBRID_UNITS_WGMMA_SHAPES(FS_COMPILED)};
#undef FS_COMPILED
  return compiled;
}

}  // namespace flashsparse::hybrid_units
