// SPDX-License-Identifier: Apache-2.0
// The inner kernels of nm_panels, nm_rows and hybrid_panels, once per instruction set.
#pragma once
#include <cstdint>

#include "common/dtype.h"
#include "formats/value_type.h"

namespace flashsparse::cpu_panels {

// How entries are stored, the same in every panel.
struct Extent {
  ValueType type;
  Dtype dtype;            // of native values
  Dtype scale_dtype;      // of codes
  int64_t n, m;           // a window's entries and columns; 1 and 1 of nm_panels
  int64_t windows;        // of a row
  int64_t group_windows;  // that share a scale; `windows` where a row has one, or none
};

struct Panel {  // see formats/cpu_panels.h
  const void* values;
  const void* scales;         // of codes
  const int32_t* columns;     // of nm_panels
  const uint32_t* positions;  // of nm_rows and hybrid_panels
  const uint8_t* kinds;       // of hybrid_panels
};

// sums[token][16 rows] = a panel times activations x in fp32.
using Multiply = void (*)(const Panel& panel, const Extent& extent, const float* x, int tokens,
                          float* sums);

struct Kernels {
  void (*widen)(const void* from, Dtype dtype, int64_t count, float* to);

  // The most tokens whose accumulators fit into registers, and the product of as many.
  int panels_tokens, rows_tokens;
  Multiply panels;  // nm_panels: x [columns][tokens]
  Multiply rows;    // nm_rows: x [windows][tokens][m], and 256 readable floats behind them
  Multiply hybrid;  // hybrid_panels: as rows, with m = 4
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

}  // namespace flashsparse::cpu_panels
