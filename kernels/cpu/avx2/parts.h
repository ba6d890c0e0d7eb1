// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "cpu/kernels.h"

namespace flashsparse::cpu::avx2 {

extern const LinearKernels kBFloat16Float32, kFloat16Float32, kFloat32, kInt8Float32;  // linear.cpp

void decode(const DecodeRow& row);  // decode.cpp

}  // namespace flashsparse::cpu::avx2
