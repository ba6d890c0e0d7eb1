// SPDX-License-Identifier: Apache-2.0
// Launchers of nm_vector's kernels. Pointers are device memory; nothing here synchronises.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/dtype.h"
#include "cuda/nm_vector/verdict.h"
#include "formats/nm_vector.h"
#include "formats/value_type.h"

namespace flashsparse::cuda {

// Packs weight[rows, cols] to values[rows][kept] and index[groups][index_bytes]; Value is uint16_t
// or uint32_t. breaches[PackTile::of(...).tiles(rows, cols)] says where the weight breaks the
// pattern (formats/nm_vector.h); values and index are of no use then. Returns cudaErrorInvalidValue
// where the weight has more tiles than a launch has blocks.
template <class Value>
cudaError_t nm_vector_pack(const Value* weight, int64_t rows, int64_t cols,
                           const nm_vector::Pattern& pattern, Value* values, uint8_t* index,
                           int32_t* breaches, cudaStream_t stream);

// Rows of a weight as its tensors hold them.
struct NmVectorRows {
  const void* values;    // [rows][kept], as wide as the weight's dtype; or codes
  const uint8_t* index;  // [groups][index_bytes]
  ValueType type;
  const void* scales;  // of codes, float [rows], or of the weight's dtype; null: codes are numbers
  int64_t group;       // columns of a row that share a scale, 32, 64 or 128; 0: all
};

// Unpacks to weight[rows, cols] of `dtype`; of values as they are only its width matters. Returns
// cudaErrorInvalidValue where the weight has more tiles than a launch has blocks.
cudaError_t nm_vector_unpack(const NmVectorRows& packed, const nm_vector::Pattern& pattern,
                             int64_t rows, int64_t cols, Dtype dtype, void* weight,
                             cudaStream_t stream);

// found[validate_blocks()], which `join` sums up. Returns cudaErrorInvalidValue where `values` are
// not aligned to 16 bytes.
cudaError_t nm_vector_validate(const void* values, const uint8_t* index,
                               const nm_vector::Fields& fields, const nm_vector::Pattern& pattern,
                               int64_t rows, int64_t cols, nm_vector::Found* found,
                               cudaStream_t stream);

}  // namespace flashsparse::cuda
