// SPDX-License-Identifier: Apache-2.0
// Launchers of nm_vector's kernels. Pointers are device memory; nothing here synchronizes.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/dtype.h"
#include "cuda/nm_vector/verdict.h"
#include "formats/nm_vector.h"
#include "formats/value_type.h"

namespace flashsparse::cuda {

// Packs weight[rows, cols] to values[rows][kept] and index[groups][index_bytes]; Value is uint16_t
// or uint32_t. breaches[PackTile::of(...).tiles(rows, cols)] tells where the weight breaks the
// pattern (formats/nm_vector.h); values and index are invalid then. Returns cudaErrorInvalidValue
// if the weight has more tiles than a launch can have blocks.
template <class Value>
cudaError_t nm_vector_pack(const Value* weight, int64_t rows, int64_t cols,
                           const nm_vector::Pattern& pattern, Value* values, uint8_t* index,
                           int32_t* breaches, cudaStream_t stream);

// Rows of a packed weight.
struct NmVectorRows {
  const void* values;    // [rows][kept], of the weight's dtype, or quantized
  const uint8_t* index;  // [groups][index_bytes]
  ValueType type;
  const void* scales;  // of quantized values: float [rows], or [rows][groups] of the weight's
                       // dtype; null: 1
  int64_t group;       // columns of a row that share a scale: 32, 64 or 128; 0: all
};

// Unpacks to weight[rows, cols] of `dtype`, of which only the width matters for native values.
// Returns cudaErrorInvalidValue if the weight has more tiles than a launch can have blocks.
cudaError_t nm_vector_unpack(const NmVectorRows& packed, const nm_vector::Pattern& pattern,
                             int64_t rows, int64_t cols, Dtype dtype, void* weight,
                             cudaStream_t stream);

// Fills found[validate_blocks()], which `join` combines. Returns cudaErrorInvalidValue if `values`
// are not 16-byte aligned.
cudaError_t nm_vector_validate(const void* values, const uint8_t* index,
                               const nm_vector::Fields& fields, const nm_vector::Pattern& pattern,
                               int64_t rows, int64_t cols, nm_vector::Found* found,
                               cudaStream_t stream);

}  // namespace flashsparse::cuda
