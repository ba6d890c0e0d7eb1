// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/parts.h"

namespace flashsparse::cpu::avx512 {

const Kernels kKernels = {&kBFloat16Dot, &kBFloat16Float32, &kFloat16Float32,
                          &kFloat32,     &kInt8BFloat16,    &kInt8Float32,
                          store,         count_nonzeros,    decode};

}  // namespace flashsparse::cpu::avx512
