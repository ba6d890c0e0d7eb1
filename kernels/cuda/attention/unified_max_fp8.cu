// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/unified_max_decode.h"
#include "cuda/attention/unified_max_kernel.cuh"

namespace flashsparse::unified_max {

DecodeKernel fp8_kernel(const Problem& problem, bool bfloat16) {
  return compiled_decode<Fp8>(problem, bfloat16);
}

}  // namespace flashsparse::unified_max
