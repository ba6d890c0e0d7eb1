// SPDX-License-Identifier: Apache-2.0
#include "cuda/sparse_24/wgmma.cuh"

namespace flashsparse::sparse_24 {

const WgmmaCompiled* compiled_wgmma_fp8_x() { return compiled_operands<Fp8Operand, Fp8Operand>(); }

}  // namespace flashsparse::sparse_24
