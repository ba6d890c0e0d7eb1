// SPDX-License-Identifier: Apache-2.0
// The plain C++ kernels. Some serve the other instruction sets too.
#pragma once
#include "cpu/kernels.h"

namespace flashsparse::cpu::portable {

extern const LinearKernels kBFloat16Float32, kFloat16Float32;

// activations.cpp
void pack_float32_activations(const void* x, Dtype dtype, int64_t in_features, int tokens,
                              int64_t first, int64_t last, void* packed);
void store(const float* sums, int tokens, const float* bias, int rows, void* y, int64_t stride,
           Dtype dtype);

// interleaved_bitmap.cpp
int64_t count_nonzeros(const uint16_t* values, int64_t count);
uint16_t* pack_panel(const uint16_t* weight, int64_t stride, int rows, int64_t cols,
                     uint32_t* masks, uint16_t* values);
uint16_t* pack_tile_panel(const uint16_t* tile, int rows, int cols, uint32_t* masks,
                          uint16_t* values);
void unpack_panel(const Panel& panel, int rows, int64_t cols, uint16_t* weight, int64_t stride);

// tiled_csl.cpp
void count_tiles(const uint16_t* row, int64_t cols, int64_t* nonzeros);
int64_t pack_tile(const uint16_t* weight, int64_t stride, int rows, int cols, uint32_t* words);

// decode.cpp
void decode(const DecodeRow& row);

}  // namespace flashsparse::cpu::portable
