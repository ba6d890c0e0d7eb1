// SPDX-License-Identifier: Apache-2.0
// What the sources of this folder provide to the table in avx512/table.cpp.
#pragma once
#include "cpu/kernels.h"

namespace flashsparse::cpu::avx512 {

extern const LinearKernels kBFloat16Dot;   // linear_bfloat16.cpp
extern const LinearKernels kInt8BFloat16;  // linear_int8.cpp
// linear_float32.cpp
extern const LinearKernels kBFloat16Float32, kFloat16Float32, kFloat32, kInt8Float32;

// activations.cpp
void pack_bfloat16_activations(const void* x, Dtype dtype, int64_t in_features, int tokens,
                               int64_t first, int64_t last, void* packed);
void pack_float32_activations(const void* x, Dtype dtype, int64_t in_features, int tokens,
                              int64_t first, int64_t last, void* packed);
void store(const float* sums, int tokens, const float* bias, int rows, void* y, int64_t stride,
           Dtype dtype);

int64_t count_nonzeros(const uint16_t* values, int64_t count);  // nonzeros.cpp

void decode(const DecodeRow& row);  // decode.cpp

}  // namespace flashsparse::cpu::avx512
