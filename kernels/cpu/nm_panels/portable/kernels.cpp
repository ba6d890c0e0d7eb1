// SPDX-License-Identifier: Apache-2.0
#include "cpu/nm_panels/product.h"
#include "cpu/portable/codes.h"

namespace flashsparse::nm_panels::portable {
const Kernels kKernels = kTable;
}
