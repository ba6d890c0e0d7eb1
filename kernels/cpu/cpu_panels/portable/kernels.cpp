// SPDX-License-Identifier: Apache-2.0
#include "cpu/portable/codes.h"

namespace {

template <int kWidth>
FS_VECTOR_INLINE void pick(const float* window, const Words& positions, Floats& to) {
  for (int lane = 0; lane < kLanes; ++lane) to[lane] = window[positions[lane] % kWidth];
}

}  // namespace

#include "cpu/cpu_panels/product.h"

namespace flashsparse::cpu_panels::portable {
const Kernels kKernels = kTable;
}
