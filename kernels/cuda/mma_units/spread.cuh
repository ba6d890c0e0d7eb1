// SPDX-License-Identifier: Apache-2.0
// Units of 2:4 as dense weights: what a lane of an unpacking kernel stores.
#pragma once
#include <cstdint>

#include "common/device.cuh"
#include "common/memory.cuh"

namespace flashsparse::mma_units {

// Four columns, of which two have the values `two`: the four bits of `metadata` are their columns.
__device__ __forceinline__ uint2 spread(uint32_t two, uint32_t metadata) {
  const uint32_t low = two & 0xffff, high = two >> 16;
  const uint64_t four = static_cast<uint64_t>(low) << (metadata & 3) * 16 |
                        static_cast<uint64_t>(high) << (metadata >> 2 & 3) * 16;
  return make_uint2(static_cast<uint32_t>(four), static_cast<uint32_t>(four >> 32));
}

// The four columns of register i of a lane in a step of 32 columns, by the metadata of its unit,
// which is laid out as in formats/sparse_24.h: four words of a lane.
__device__ __forceinline__ uint2 spread(uint32_t two, int i, const uint32_t* metadata, int step) {
  const int lane = threadIdx.x % 32, giver = (lane & ~3) + step % 2 * 2 + i / 2;
  const uint32_t word = load_readonly(metadata + giver * 4 + step / 2);
  return spread(two, word >> (i % 2 * 16 + lane % 4 * 4));
}

}  // namespace flashsparse::mma_units
