// SPDX-License-Identifier: Apache-2.0
// The tensors of an interleaved bitmap on a CPU, for the ops that convert it to other formats and
// back.
#pragma once
#include <tuple>

#include "bindings/torch_stable.h"
#include "cpu/interleaved_bitmap/interleaved_bitmap.h"

namespace flashsparse {

using InterleavedBitmap = std::tuple<Tensor, Tensor, Tensor>;  // values, masks, panel_offsets

InterleavedBitmap interleaved_bitmap_pack(const Tensor& weight);

// Checks the tensors, and their contents.
interleaved_bitmap::Weight valid_interleaved_bitmap(const Tensor& values, const Tensor& masks,
                                                    const Tensor& offsets, int64_t out, int64_t in);

}  // namespace flashsparse
