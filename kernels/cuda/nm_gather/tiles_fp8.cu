// SPDX-License-Identifier: Apache-2.0
// The prefill kernels for fp8 values, in their own source file to compile in parallel.
#include "cuda/nm_gather/tiles.cuh"

namespace flashsparse::nm_gather {

template CompiledTiles compiled_tiles<ValueType::kFp8>(int shape);

}  // namespace flashsparse::nm_gather
