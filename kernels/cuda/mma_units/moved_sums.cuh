// SPDX-License-Identifier: Apache-2.0
// Accumulators that are moved between warps and blocks, four at a time: floats, or integers as the
// bits of floats.
#pragma once
#include "common/device.cuh"

namespace flashsparse::mma_units {

__device__ __forceinline__ float bits_of_sum(float sum) { return sum; }
__device__ __forceinline__ float bits_of_sum(int32_t sum) { return __uint_as_float(sum); }
__device__ __forceinline__ float bits_of_sum(uint32_t sum) { return __uint_as_float(sum); }

template <class Sum>
__device__ __forceinline__ Sum sum_of_bits(float bits) {
  return bits;
}
template <>
__device__ __forceinline__ int32_t sum_of_bits<int32_t>(float bits) {
  return static_cast<int32_t>(__float_as_uint(bits));
}
template <>
__device__ __forceinline__ uint32_t sum_of_bits<uint32_t>(float bits) {
  return __float_as_uint(bits);
}

template <class Sum>
__device__ __forceinline__ float4 moved(const Sum* sums) {
  return make_float4(bits_of_sum(sums[0]), bits_of_sum(sums[1]), bits_of_sum(sums[2]),
                     bits_of_sum(sums[3]));
}
template <class Sum>
__device__ __forceinline__ void arrived(Sum* sums, const float4& bits) {
  sums[0] = sum_of_bits<Sum>(bits.x), sums[1] = sum_of_bits<Sum>(bits.y);
  sums[2] = sum_of_bits<Sum>(bits.z), sums[3] = sum_of_bits<Sum>(bits.w);
}

template <class Sum>
__device__ __forceinline__ float joined(float a, float b) {
  return bits_of_sum(sum_of_bits<Sum>(a) + sum_of_bits<Sum>(b));
}
template <class Sum>
__device__ __forceinline__ float4 joined(const float4& a, const float4& b) {
  return make_float4(joined<Sum>(a.x, b.x), joined<Sum>(a.y, b.y), joined<Sum>(a.z, b.z),
                     joined<Sum>(a.w, b.w));
}

// As floats. Accumulators of int32 are rounded here, once.
template <class Sum>
__device__ __forceinline__ float4 numbers(const float4& bits) {
  return make_float4(
      static_cast<float>(sum_of_bits<Sum>(bits.x)), static_cast<float>(sum_of_bits<Sum>(bits.y)),
      static_cast<float>(sum_of_bits<Sum>(bits.z)), static_cast<float>(sum_of_bits<Sum>(bits.w)));
}

}  // namespace flashsparse::mma_units
