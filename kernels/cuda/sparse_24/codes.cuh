// SPDX-License-Identifier: Apache-2.0
// Quantized types of which tensor cores multiply weight and x directly (W8A8): all that differs
// between the types.
//   Values              of units (values.cuh)
//   Sum                 type of accumulators
//   kLargest            largest quantized value
//   kUpper, kLower      prmt selectors: the bytes of the upper row, and of the lower row, in two
//                       words of a lane
//   narrow(a, b, c, d)  quantizes four floats
//   kHasNarrow          whether the GPU that is compiled for has this conversion
//   kHasMma             whether it has mma of the type
//   multiply(sums, a, b, metadata)          by mma.sp
//   multiply<tokens>(sums, a, b, metadata)  by wgmma.sp
//   column, kSums, kWide  layout of x (cuda/mma_units/quantise_x.cuh)
#pragma once
#include "common/integer.cuh"
#include "common/mma_sparse.cuh"
#include "common/narrow.cuh"
#include "common/wgmma_sparse.cuh"
#include "cuda/sparse_24/values.cuh"

namespace flashsparse::sparse_24 {

// Both instructions take 64 columns. In each 32, they expect the groups of four columns 2 t and 2 t
// + 1 in lane t of a quad, where units give it t and t + 4. So x has the groups in the order 0, 4,
// 1, 5, 2, 6, 3, 7, and A and metadata of two steps are put into that order below.
struct CodesOfX {
  static constexpr bool kSums = false, kWide = false;

  static __device__ __forceinline__ constexpr int column(int word, int byte) {
    return 4 * (word / 2 + word % 2 * 4) + byte;
  }
};

struct Fp8Codes : CodesOfX {
  using Values = Fp8Values<0>;
  using Sum = float;
  static constexpr float kLargest = kLargestFp8;
  static constexpr uint32_t kUpper = 0x5410, kLower = 0x7632;
  static constexpr bool kHasMma = kHasMmaFp8, kHasNarrow = kHasNarrowFp8;

  static __device__ __forceinline__ uint32_t narrow(float a, float b, float c, float d) {
    return narrow_fp8(a, b, c, d);
  }
  static __device__ __forceinline__ void multiply(Sum (&sums)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[4], uint32_t metadata) {
    mma_sparse_fp8(sums, a, b, metadata);
  }
  template <int tokens>
  static __device__ __forceinline__ void multiply(Sum (&sums)[tokens / 2], const uint32_t (&a)[4],
                                                  uint64_t b, const uint32_t& metadata) {
    wgmma_sparse_fp8<tokens>(sums, a, b, metadata);
  }
};

// e4m3 of x for kernels of 16-bit x, where tensor cores have no mma of the type.
struct WideFp8Codes {
  static constexpr float kLargest = kLargestFp8;
  static constexpr bool kHasNarrow = kHasNarrowFp8, kSums = false, kWide = true;

  static __device__ __forceinline__ uint32_t narrow(float a, float b, float c, float d) {
    return narrow_fp8(a, b, c, d);
  }
  static __device__ __forceinline__ constexpr int column(int word, int byte) {
    return 4 * word + byte;
  }
};

struct Int8Codes : CodesOfX {
  using Values = Int8Values<0>;
  using Sum = int32_t;
  static constexpr float kLargest = kLargestInt8;
  static constexpr uint32_t kUpper = 0x6420, kLower = 0x7531;
  static constexpr bool kHasMma = true, kHasNarrow = true;

  static __device__ __forceinline__ uint32_t narrow(float a, float b, float c, float d) {
    return narrow_int8(a, b, c, d);
  }
  static __device__ __forceinline__ void multiply(Sum (&sums)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[4], uint32_t metadata) {
    mma_sparse_int8(sums, a, b, metadata);
  }
  template <int tokens>
  static __device__ __forceinline__ void multiply(Sum (&sums)[tokens / 2], const uint32_t (&a)[4],
                                                  uint64_t b, const uint32_t& metadata) {
    wgmma_sparse_int8<tokens>(sums, a, b, metadata);
  }
};

// A of 64 columns, from a lane's 16 bytes of them.
template <class Codes>
__device__ __forceinline__ void order_values(uint32_t (&a)[4], const uint4& v) {
  a[0] = prmt(v.x, v.y, Codes::kUpper);
  a[1] = prmt(v.x, v.y, Codes::kLower);
  a[2] = prmt(v.z, v.w, Codes::kUpper);
  a[3] = prmt(v.z, v.w, Codes::kLower);
}

// Metadata of 64 columns. Of two neighbouring lanes the even one has groups 0 to 3 of a step, the
// odd one groups 4 to 7, both for two rows. Afterwards the even lane has all of the upper row, the
// odd one all of the lower row.
__device__ __forceinline__ uint32_t order_metadata(uint32_t own) {
  const uint32_t other = __shfl_xor_sync(~0u, own, 1);
  const uint32_t bytes = prmt(own, other, threadIdx.x % 2 ? 0x3726 : 0x5140);
  return (bytes & 0xf00ff00f) | (bytes & 0x00f000f0) << 4 | (bytes & 0x0f000f00) >> 4;
}

}  // namespace flashsparse::sparse_24
