// SPDX-License-Identifier: Apache-2.0
#include "cpu/nm_panels/product.h"

namespace flashsparse::nm_panels::portable {
const Kernels kKernels = kTable;
}
