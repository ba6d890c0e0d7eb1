// SPDX-License-Identifier: Apache-2.0
// Launchers of what surrounds tiled_bitmap's products: pack, unpack, validate. Pointers are device
// memory; nothing here synchronises. All return cudaErrorInvalidValue where the arguments cannot be
// launched.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashsparse::cuda {

// Packs weight[rows, cols] (row by row, 16-bit values, or codes of int8 in float16 whose items have
// one byte) in two steps, since the lines can only be allocated when they are counted. The first
// fills lengths[units], of which sum_offsets
// (cuda/shared/offsets.h) makes the offsets and the number of lines. The second fills
// packed[lines][32], aligned to 16 bytes.
cudaError_t tiled_bitmap_count(const uint16_t* weight, int64_t rows, int64_t cols, int item_bytes,
                               int32_t* lengths, cudaStream_t stream);
cudaError_t tiled_bitmap_pack(const uint16_t* weight, int64_t rows, int64_t cols, int item_bytes,
                              const int32_t* offsets, uint32_t* packed, cudaStream_t stream);

// Unpacks packed[num_lines][32] to weight[rows, cols] (16-bit values, zeros included). `packed` is
// aligned to 16 bytes, `offsets` has one entry a unit and one more; rows, cols >= 1.
// A panel of rows from a multiple of 16 on is a weight of its own: its units follow each other, so
// it takes fewer rows, and offsets and scales that begin at its first unit and row.
cudaError_t tiled_bitmap_unpack(const uint32_t* packed, int64_t num_lines, const int32_t* offsets,
                                int64_t rows, int64_t cols, uint16_t* weight, cudaStream_t stream);
// The same of codes, times scales[rows], or as they are where `scales` is null.
cudaError_t tiled_bitmap_unpack_codes(const uint32_t* packed, int64_t num_lines,
                                      const int32_t* offsets, const float* scales, int64_t rows,
                                      int64_t cols, bool bfloat16, uint16_t* weight,
                                      cudaStream_t stream);
// Codes as they are, a byte each, for a product with codes of x whose columns lie in the same order
// (codes_of_x.cuh): codes[16 ceil(rows / 16)][stride], zeros at the edges, on 16 bytes. `stride` is
// quantised_stride(cols) (cuda/mma_units/quantise_x.h).
cudaError_t tiled_bitmap_unpack_beside_x(const uint32_t* packed, int64_t num_lines,
                                         const int32_t* offsets, int64_t rows, int64_t cols,
                                         int64_t stride, void* codes, cudaStream_t stream);

// Validates packed[num_lines][32] and `offsets` of any content: verdicts[u] >= 0 is the number of
// values of unit u, a negative one the rule that it breaks (tiled_bitmap_errors.h).
cudaError_t tiled_bitmap_validate(const uint32_t* packed, int64_t num_lines, const int32_t* offsets,
                                  int64_t rows, int64_t cols, int item_bytes, int32_t* verdicts,
                                  cudaStream_t stream);

}  // namespace flashsparse::cuda
