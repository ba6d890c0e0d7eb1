// SPDX-License-Identifier: Apache-2.0
// AVX2 has its own product and decode; the rest is portable.
#include "cpu/avx2/parts.h"
#include "cpu/portable/parts.h"

namespace flashsparse::cpu::avx2 {

const Kernels kKernels = {/*bfloat16_dot=*/nullptr,
                          &kBFloat16Float32,
                          &kFloat16Float32,
                          &kFloat32,
                          /*int8_bfloat16=*/nullptr,
                          &kInt8Float32,
                          portable::store,
                          portable::count_nonzeros,
                          decode};

}  // namespace flashsparse::cpu::avx2
