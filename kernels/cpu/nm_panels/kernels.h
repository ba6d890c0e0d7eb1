// SPDX-License-Identifier: Apache-2.0
// The inner kernels of nm_panels, once per instruction set.
#pragma once
#include <cstdint>

#include "common/dtype.h"
#include "formats/value_type.h"

namespace flashsparse::nm_panels {

struct Panel {  // see formats/nm_panels.h
  const void* values;
  const int32_t* columns;
  int64_t kept;           // entries of a row
  const void* scales;     // of codes
  int64_t group_entries;  // entries that share a scale; `kept` where a row has one, or none
  Dtype scale_dtype;
};

struct Kernels {
  int block_tokens;  // the most tokens whose accumulators fit into registers

  void (*widen)(const void* from, Dtype dtype, int64_t count, float* to);
  // sums[token][16 rows] = the panel times activations x, fp32 [columns][tokens]. `dtype` is that
  // of native values.
  void (*multiply)(const Panel& panel, ValueType type, Dtype dtype, const float* x, int tokens,
                   float* sums);
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
