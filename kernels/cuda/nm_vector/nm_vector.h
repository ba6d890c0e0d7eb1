// SPDX-License-Identifier: Apache-2.0
// Launcher of nm_vector's packer. Pointers are device memory; nothing here synchronises.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "formats/nm_vector.h"

namespace flashsparse::cuda {

// Packs weight[rows, cols] to values[rows][kept] and index[groups][index_bytes]; Value is uint16_t
// or uint32_t. breaches[PackTile::of(...).tiles(rows, cols)] says where the weight breaks the
// pattern (formats/nm_vector.h); values and index are of no use then. Returns cudaErrorInvalidValue
// where the weight has more tiles than a launch has blocks.
template <class Value>
cudaError_t nm_vector_pack(const Value* weight, int64_t rows, int64_t cols,
                           const nm_vector::Pattern& pattern, Value* values, uint8_t* index,
                           int32_t* breaches, cudaStream_t stream);

}  // namespace flashsparse::cuda
