// SPDX-License-Identifier: Apache-2.0
// The compiled wgmma kernels of tiled_bitmap. Each dtype and kind of values has a source
// file of its own (instances.cmake), so that they compile in parallel.
#pragma once
#include "common/tensor_map.h"
#include "cuda/tiled_bitmap/operands.h"
#include "cuda/tiled_bitmap/wgmma_arguments.h"

namespace flashsparse::tiled_bitmap {

using WgmmaKernel = void (*)(WgmmaArguments, TensorMap);

// Indexed like kWgmmaShapes. Type is Float16 or BFloat16.
template <class Type, Operands operands>
const WgmmaKernel* compiled_wgmma();

}  // namespace flashsparse::tiled_bitmap
