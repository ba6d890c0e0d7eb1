// SPDX-License-Identifier: Apache-2.0
// The kernels for many tokens of int4 values, which compile beside the others.
#include "cuda/nm_gather/tiles.cuh"

namespace flashsparse::nm_gather {

template CompiledTiles compiled_tiles<ValueType::kInt4>(int shape);

}  // namespace flashsparse::nm_gather
