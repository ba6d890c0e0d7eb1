// SPDX-License-Identifier: Apache-2.0
// The plain C++ kernels. Some are shared by other instruction sets.
#pragma once
#include "cpu/kernels.h"

namespace flashsparse::cpu::portable {

extern const LinearKernels kBFloat16Float32, kFloat16Float32, kFloat32, kInt8Float32;  // linear.cpp

// activations.cpp
void pack_float32_activations(const void* x, Dtype dtype, int64_t in_features, int tokens,
                              int64_t first, int64_t last, void* packed);
void store(const float* sums, int tokens, const float* bias, int rows, void* y, int64_t stride,
           Dtype dtype);

int64_t count_nonzeros(const uint16_t* values, int64_t count);  // nonzeros.cpp

void decode(const DecodeRow& row);  // decode.cpp

}  // namespace flashsparse::cpu::portable
