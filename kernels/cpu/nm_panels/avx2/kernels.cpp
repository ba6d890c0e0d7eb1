// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx2/codes.h"
#include "cpu/nm_panels/product.h"

namespace flashsparse::nm_panels::avx2 {
const Kernels kKernels = kTable;
}
