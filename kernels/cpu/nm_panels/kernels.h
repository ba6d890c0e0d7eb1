// SPDX-License-Identifier: Apache-2.0
// The inner kernels of nm_panels, once per instruction set.
#pragma once
#include <cstdint>

#include "cpu/dtype.h"

namespace flashsparse::nm_panels {

struct Kernels {
  int block_tokens;  // the most tokens whose accumulators fit into registers

  // Widens x[tokens][cols] so that a column's activations follow each other, fp32 [cols][tokens].
  void (*pack_activations)(const void* x, Dtype dtype, int64_t cols, int tokens, float* packed);
  // sums[token][16 rows] = the panel's values [kept][16] times packed activations.
  void (*multiply)(const void* values, Dtype dtype, const int32_t* columns, int64_t kept,
                   const float* packed, int tokens, float* sums);
};

// The table for this machine (cpu/capability.h).
const Kernels& kernels();

namespace portable {
extern const Kernels kKernels;
}
#ifdef FLASHSPARSE_X86
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
#endif

}  // namespace flashsparse::nm_panels
