// SPDX-License-Identifier: Apache-2.0
// The inner kernel of nm_rows, once per instruction set.
#pragma once
#include <cstdint>

#include "common/dtype.h"
#include "formats/value_type.h"

namespace flashsparse::nm_rows {

// Kept entries and their groups, the same in every panel.
struct Extent {
  int64_t n, m, windows;
  int64_t group_windows;  // windows of a group; `windows` where a row has one scale
};

struct Panel {  // see formats/nm_rows.h
  const uint8_t* values;
  const uint32_t* positions;
  const void* scales;
};

struct Kernels {
  int block_tokens;  // the most tokens whose accumulators fit into registers

  void (*widen)(const void* from, Dtype dtype, int64_t count, float* to);
  // sums[token][16 rows] = the panel times activations x, fp32 [windows][tokens][m] and 256
  // readable floats behind them.
  void (*multiply)(const Panel& panel, const Extent& extent, ValueType type, Dtype scale_dtype,
                   const float* x, int tokens, float* sums);
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

}  // namespace flashsparse::nm_rows
