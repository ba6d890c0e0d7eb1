// SPDX-License-Identifier: Apache-2.0
// Tensors of Tiled-CSL on a CPU, for the ops that convert it to other formats and back.
#pragma once
#include <tuple>

#include "bindings/tiled_csl.h"
#include "cpu/tiled_csl/tiled_csl.h"

namespace flashsparse {

// Checked by check_tiled_csl; contents are not.
tiled_csl::Packed tiled_csl_of(const Tensor& words, const Tensor& offsets, int64_t out, int64_t in);

std::tuple<Tensor, Tensor> tiled_csl_pack(const cpu::Blocks& blocks, int64_t rows, int64_t cols);

}  // namespace flashsparse
