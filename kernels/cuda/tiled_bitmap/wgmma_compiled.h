// SPDX-License-Identifier: Apache-2.0
// The compiled wgmma kernels of tiled_bitmap, each dtype in a source file of its own, so that they
// compile side by side.
#pragma once
#include "common/tensor_map.h"
#include "cuda/tiled_bitmap/wgmma_arguments.h"

namespace flashsparse::tiled_bitmap {

using WgmmaKernel = void (*)(WgmmaArguments, TensorMap);

// By the index of kWgmmaShapes. Type is Float16 or BFloat16.
template <class Type>
const WgmmaKernel* compiled_wgmma();

}  // namespace flashsparse::tiled_bitmap
