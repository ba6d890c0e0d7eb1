// SPDX-License-Identifier: Apache-2.0
// Which elements of a weight count as zero, in every format.
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse {

// True for +0 and -0 of fp16 and bf16, and of fp32: the elements that packing drops.
FS_HOST_DEVICE constexpr bool is_zero(uint16_t bits) { return (bits & 0x7fff) == 0; }
FS_HOST_DEVICE constexpr bool is_zero(uint32_t bits) { return (bits & 0x7fffffff) == 0; }

}  // namespace flashsparse
