// SPDX-License-Identifier: Apache-2.0
// The product of tiled_bitmap with many tokens, on Hopper.
#pragma once
#include <optional>

#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "cuda/tiled_bitmap/wgmma_plan.h"

namespace flashsparse {

// Fills y by wgmma in one launch, by `given` or by a plan of its own. The tensors are readable ones
// of the weight's shape; x has the weight's dtype; there is a token or more.
void wgmma_product(const LinearInputs& inputs, const Tensor& lines, const Tensor& offsets,
                   const Gpu& gpu, const std::optional<tiled_bitmap::WgmmaPlan>& given, Tensor& y);

}  // namespace flashsparse
