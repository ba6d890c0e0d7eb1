// SPDX-License-Identifier: Apache-2.0
// Launchers that pack, unpack and validate tiled_bitmap weights. Pointers are device memory;
// nothing here synchronizes. All return cudaErrorInvalidValue for arguments that cannot be
// launched.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashsparse::cuda {

// Packs weight[rows, cols] (row-major, 16-bit values, or int8 values as float16 if item_bytes is 1)
// in two steps, since the lines can only be allocated once they are counted. tiled_bitmap_count
// fills lengths[units], from which sum_offsets (cuda/shared/offsets.h) makes the offsets and the
// number of lines. tiled_bitmap_pack fills packed[lines][32], 16-byte aligned.
cudaError_t tiled_bitmap_count(const uint16_t* weight, int64_t rows, int64_t cols, int item_bytes,
                               int32_t* lengths, cudaStream_t stream);
cudaError_t tiled_bitmap_pack(const uint16_t* weight, int64_t rows, int64_t cols, int item_bytes,
                              const int32_t* offsets, uint32_t* packed, cudaStream_t stream);

// Unpacks packed[num_lines][32] to weight[rows, cols] (16-bit values, zeros included). `packed` is
// 16-byte aligned, `offsets` has units + 1 entries; rows, cols >= 1. Rows from a multiple of 16 on
// can be unpacked alone: pass their number, and offsets and scales from their first unit and row
// on.
cudaError_t tiled_bitmap_unpack(const uint32_t* packed, int64_t num_lines, const int32_t* offsets,
                                int64_t rows, int64_t cols, uint16_t* weight, cudaStream_t stream);
// Unpacks int8 values, times scales[rows]; without scales if `scales` is null.
cudaError_t tiled_bitmap_unpack_codes(const uint32_t* packed, int64_t num_lines,
                                      const int32_t* offsets, const float* scales, int64_t rows,
                                      int64_t cols, bool bfloat16, uint16_t* weight,
                                      cudaStream_t stream);
// Unpacks int8 values to a byte each, for a library GEMM with quantized x, in x's order of columns
// (codes_of_x.cuh): codes[16 ceil(rows / 16)][stride], zero-padded, 16-byte aligned. `stride` is
// quantised_stride(cols) (cuda/mma_units/quantise_x.h).
cudaError_t tiled_bitmap_unpack_beside_x(const uint32_t* packed, int64_t num_lines,
                                         const int32_t* offsets, int64_t rows, int64_t cols,
                                         int64_t stride, void* codes, cudaStream_t stream);

// Validates tensors of any content: verdicts[u] is the number of nonzeros of unit u or, if
// negative, the rule that it breaks (tiled_bitmap_errors.h).
cudaError_t tiled_bitmap_validate(const uint32_t* packed, int64_t num_lines, const int32_t* offsets,
                                  int64_t rows, int64_t cols, int item_bytes, int32_t* verdicts,
                                  cudaStream_t stream);

}  // namespace flashsparse::cuda
