// SPDX-License-Identifier: Apache-2.0
// The compiled wgmma kernels of tiled_bitmap by what is known when they are launched. Apart from
// wgmma_compiled.h, as it names them all: a source file of one dtype would compile each of them.
#pragma once
#include "common/mma.cuh"
#include "cuda/tiled_bitmap/wgmma_compiled.h"

namespace flashsparse::tiled_bitmap {

inline const WgmmaKernel* compiled_wgmma(Operands operands, bool bfloat16) {
  const auto either = [bfloat16](const WgmmaKernel* float16, const WgmmaKernel* other) {
    return bfloat16 ? other : float16;
  };
  if (operands == Operands::kNative)
    return either(compiled_wgmma<Float16, Operands::kNative>(),
                  compiled_wgmma<BFloat16, Operands::kNative>());
  if (operands == Operands::kCodes)
    return either(compiled_wgmma<Float16, Operands::kCodes>(),
                  compiled_wgmma<BFloat16, Operands::kCodes>());
  return either(compiled_wgmma<Float16, Operands::kRounded>(),
                compiled_wgmma<BFloat16, Operands::kRounded>());
}

}  // namespace flashsparse::tiled_bitmap
