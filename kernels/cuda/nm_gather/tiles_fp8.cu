// SPDX-License-Identifier: Apache-2.0
// The kernels for many tokens of fp8 values, which compile beside the others.
#include "cuda/nm_gather/tiles.cuh"

namespace flashsparse::nm_gather {

template CompiledTiles compiled_tiles<ValueType::kFp8>(int shape);

}  // namespace flashsparse::nm_gather
