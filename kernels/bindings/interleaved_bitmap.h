// SPDX-License-Identifier: Apache-2.0
// The tensors of an interleaved bitmap, and the way to them that every unstructured format has: by
// its dense weight.
#pragma once
#include <tuple>

#include "bindings/torch_stable.h"

namespace flashsparse {

using InterleavedBitmap = std::tuple<Tensor, Tensor, Tensor>;  // values, masks, panel_offsets

InterleavedBitmap interleaved_bitmap_pack(const Tensor& weight);

}  // namespace flashsparse
