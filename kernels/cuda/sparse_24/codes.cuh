// SPDX-License-Identifier: Apache-2.0
// Codes of 8 bits that tensor cores multiply by codes, as they are: what differs between their
// types, and nothing else does.
//   Values              of units
//   Sum                 of products
//   kLargest            code
//   kUpper, kLower      of two words of a lane, the bytes of the upper of its rows and of the lower
//   narrow(a, b, c, d)  four codes of floats
//   multiply<tokens>(sums, a, b, metadata)
#pragma once
#include "common/narrow.cuh"
#include "common/wgmma_sparse.cuh"
#include "cuda/sparse_24/values.cuh"

namespace flashsparse::sparse_24 {

struct Fp8Codes {
  using Values = Fp8Values;
  using Sum = float;
  static constexpr float kLargest = kLargestFp8;
  static constexpr uint32_t kUpper = 0x5410, kLower = 0x7632;

  static __device__ __forceinline__ uint32_t narrow(float a, float b, float c, float d) {
    return narrow_fp8(a, b, c, d);
  }
  template <int tokens>
  static __device__ __forceinline__ void multiply(Sum (&sums)[tokens / 2], const uint32_t (&a)[4],
                                                  uint64_t b, const uint32_t& metadata) {
    wgmma_sparse_fp8<tokens>(sums, a, b, metadata);
  }
};

struct Int8Codes {
  using Values = Int8Values;
  using Sum = int32_t;
  static constexpr float kLargest = kLargestInt8;
  static constexpr uint32_t kUpper = 0x6420, kLower = 0x7531;

  static __device__ __forceinline__ uint32_t narrow(float a, float b, float c, float d) {
    return narrow_int8(a, b, c, d);
  }
  template <int tokens>
  static __device__ __forceinline__ void multiply(Sum (&sums)[tokens / 2], const uint32_t (&a)[4],
                                                  uint64_t b, const uint32_t& metadata) {
    wgmma_sparse_int8<tokens>(sums, a, b, metadata);
  }
};

}  // namespace flashsparse::sparse_24
