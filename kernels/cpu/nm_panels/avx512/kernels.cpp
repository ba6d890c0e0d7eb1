// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/codes.h"
#include "cpu/nm_panels/product.h"

namespace flashsparse::nm_panels::avx512 {
const Kernels kKernels = kTable;
}
