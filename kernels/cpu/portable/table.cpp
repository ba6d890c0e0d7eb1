// SPDX-License-Identifier: Apache-2.0
#include "cpu/portable/parts.h"

namespace flashsparse::cpu::portable {

const Kernels kKernels = {/*bfloat16_dot=*/nullptr,
                          &kBFloat16Float32,
                          &kFloat16Float32,
                          &kFloat32,
                          /*int8_bfloat16=*/nullptr,
                          &kInt8Float32,
                          store,
                          count_nonzeros,
                          decode};

}  // namespace flashsparse::cpu::portable
