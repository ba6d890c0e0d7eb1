// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "common/device.cuh"

namespace flashsparse::mma_units {

// Four columns, of which two have the values `two`: the four bits of `metadata` are their columns.
__device__ __forceinline__ uint2 spread(uint32_t two, uint32_t metadata) {
  const uint32_t low = two & 0xffff, high = two >> 16;
  const uint64_t four = static_cast<uint64_t>(low) << (metadata & 3) * 16 |
                        static_cast<uint64_t>(high) << (metadata >> 2 & 3) * 16;
  return make_uint2(static_cast<uint32_t>(four), static_cast<uint32_t>(four >> 32));
}

}  // namespace flashsparse::mma_units
