// SPDX-License-Identifier: Apache-2.0
// Vectors of eight 16-bit floats, as fp32.
#pragma once
#include "common/device.cuh"
#include "common/mma.cuh"

namespace flashsparse::elementwise {

template <class Type>
struct Eight {
  float of[8];

  Eight() = default;
  __device__ __forceinline__ explicit Eight(const uint4& bits) {
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    FS_UNROLL
    for (int i = 0; i < 8; ++i)
      of[i] = to_float<Type>(static_cast<uint16_t>(words[i / 2] >> i % 2 * 16));
  }

  __device__ __forceinline__ uint4 bits() const {
    return make_uint4(from_floats<Type>(of[0], of[1]), from_floats<Type>(of[2], of[3]),
                      from_floats<Type>(of[4], of[5]), from_floats<Type>(of[6], of[7]));
  }
};

// The nearest 16-bit float, as fp32.
template <class Type>
__device__ __forceinline__ float rounded(float value) {
  return to_float<Type>(from_float<Type>(value));
}

}  // namespace flashsparse::elementwise
