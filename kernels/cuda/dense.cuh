// SPDX-License-Identifier: Apache-2.0
// What the kernels of dense layers have in common: their arguments, and how they read a weight.
#pragma once
#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"

namespace flashsparse::dense {

struct Arguments {
  const uint16_t* x;       // [tokens, cols], rows `x_stride` elements apart, on 16 bytes each, and
  int x_stride;            // zero from cols up to a multiple of 8
  const uint16_t* weight;  // [rows, cols], rows `weight_stride` elements apart
  int weight_stride;
  const uint16_t* bias;  // [rows], or null
  uint16_t* y;           // [tokens, rows]
  int rows, cols, tokens;
};

// Call is cuda::DenseCall (dense.h), which needs the headers of CUDA.
template <class Call>
Arguments arguments_of(const Call& call) {
  return {call.x,
          static_cast<int>(call.x_stride),
          call.weight,
          static_cast<int>(call.weight_stride),
          call.bias,
          call.y,
          static_cast<int>(call.rows),
          static_cast<int>(call.cols),
          static_cast<int>(call.tokens)};
}

inline constexpr int kChunk = 8;  // elements of a 16-byte load

// Eight elements of a row, zero from column cols on.
__device__ __forceinline__ uint4 load_elements(const uint16_t* place, int column, int cols) {
  uint32_t bits[kChunk];
  FS_UNROLL
  for (int i = 0; i < kChunk; ++i) bits[i] = column + i < cols ? load_readonly(place + i) : 0;
  return make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16,
                    bits[6] | bits[7] << 16);
}

// The same of whole chunks, at once where rows lie on 16 bytes.
template <bool kAligned>
__device__ __forceinline__ uint4 load_chunk(const uint16_t* place, int column, int cols) {
  if constexpr (kAligned) {
    return load_streaming(reinterpret_cast<const uint4*>(place));
  } else {
    return load_elements(place, column, cols);
  }
}

// From lane 0, so that the compiler knows it for the same in every lane of a warp.
__device__ __forceinline__ int warp_of_block() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
}

}  // namespace flashsparse::dense
