// SPDX-License-Identifier: Apache-2.0
// The product of tiled_bitmap for many tokens, on Hopper.
#pragma once
#include <optional>

#include "bindings/cuda.h"
#include "bindings/linear.h"
#include "cuda/tiled_bitmap/wgmma_plan.h"

namespace flashsparse {

// Fills y by wgmma in one launch, with the plan `given` or its own. The tensors have passed
// check_readable_units for the weight's shape; x has the weight's dtype, and at least one token.
void wgmma_product(const LinearInputs& inputs, const Tensor& lines, const Tensor& offsets,
                   const Gpu& gpu, const std::optional<tiled_bitmap::WgmmaPlan>& given, Tensor& y);

}  // namespace flashsparse
