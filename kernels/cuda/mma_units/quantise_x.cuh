// SPDX-License-Identifier: Apache-2.0
// Quantizes activations to 8 bits with a dynamic scale for each token: the token's largest
// magnitude becomes the largest quantized value.
//
// Quantized x is laid out as the format's kernel multiplies it, so that units do not depend on the
// type of x. A format defines:
//   kLargest            largest quantized value
//   kHasNarrow          whether the GPU that is compiled for has the conversion
//   narrow(a, b, c, d)  quantizes four floats, a to the lowest byte
//   kSums               whether the kernel needs the sum of each token's quantized values, which
//   are
//                       int8 then
//   column(word, byte)  which of 32 columns is stored in that byte
//   kWide               whether a value is stored as the 16-bit float of its number instead: the
//                       type is e4m3, and words take the place of bytes
#pragma once
#include <type_traits>

#include "common/device.cuh"
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/widen.cuh"
#include "cuda/mma_units/block_sum.cuh"
#include "cuda/mma_units/quantise_x.h"

namespace flashsparse::mma_units {

// Unpacks eight values from 16 bytes.
template <class Type>
__device__ __forceinline__ void to_floats(float (&values)[8], const uint4& bits) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
  FS_UNROLL
  for (int i = 0; i < 8; ++i) {
    values[i] = to_float<Type>(static_cast<uint16_t>(words[i / 2] >> i % 2 * 16));
  }
}

// Writes codes [tokens, quantised_stride(cols)], in bytes or 16 bits, and scales [tokens]; sums
// [tokens] modulo 2^32, if kSums. x is 16-byte aligned, its rows a multiple of 8 long, zero past
// `cols`. A token with NaN or an infinity has such a scale. Launch with a block for each token and
// kQuantiseThreads threads. Empty if the GPU does not have the conversion.
template <class Type, class Codes>
__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_x_kernel(const uint16_t* __restrict__ x, int x_stride, uint4* __restrict__ codes,
                      float* __restrict__ scales, uint32_t* __restrict__ sums) {
  if constexpr (!Codes::kHasNarrow) return;
  FS_SHARED(uint32_t, largest_of, kQuantiseThreads / 32);
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const auto* const from = reinterpret_cast<const uint4*>(x + int64_t{blockIdx.x} * x_stride);
  const int vectors = x_stride / 8;
  // Magnitudes are compared by their bits, which have the same order, with NaN above infinity.
  // Small magnitudes are scaled up, so that their inverse is finite; float16 has none that small.
  constexpr bool kLifts = std::is_same_v<Type, BFloat16>;
  // The scale of a token of zeros comes from the smallest number of its dtype.
  uint32_t largest = __float_as_uint(kLifts ? 0x1p-133f : 0x1p-24f);
  float values[8];
  constexpr int kAtOnce = 8;  // loads in flight
  FS_NO_UNROLL
  for (int begin = threadIdx.x; begin < vectors; begin += kAtOnce * kQuantiseThreads) {
    uint4 loaded[kAtOnce];
    FS_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int vector = begin + i * kQuantiseThreads;
      loaded[i] = vector < vectors ? load_global(from + vector) : uint4{};
    }
    FS_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      to_floats<Type>(values, loaded[i]);
      FS_UNROLL
      for (int k = 0; k < 8; ++k) largest = max(largest, __float_as_uint(fabsf(values[k])));
    }
  }
  FS_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    largest = max(largest, __shfl_xor_sync(~0u, largest, mask));
  }
  if (threadIdx.x % 32 == 0) largest_of[threadIdx.x / 32] = largest;
  __syncthreads();
  FS_UNROLL
  for (int warp = 0; warp < kQuantiseThreads / 32; ++warp) {
    largest = max(largest, largest_of[warp]);
  }
  const float magnitude = __uint_as_float(largest);
  const float lift = kLifts && magnitude < 0x1p-100f ? 0x1p100f : 1.0f;
  const float inverse = Codes::kLargest / (magnitude * lift);
  if (threadIdx.x == 0) {
    float scale = magnitude / Codes::kLargest;
    if constexpr (Codes::kWide) scale += magnitude * 0.0f;  // NaN where a code would be: none is
    scales[blockIdx.x] = scale;
  }
  const int blocks = static_cast<int>(quantised_stride(x_stride)) / kQuantisedCols;
  uint32_t sum = 0;
  FS_NO_UNROLL
  for (int block = threadIdx.x; block < blocks; block += kQuantiseThreads) {
    float own[kQuantisedCols];
    FS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int vector = block * 4 + i;
      to_floats<Type>(values, vector < vectors ? load_global(from + vector) : uint4{});
      FS_UNROLL
      for (int k = 0; k < 8; ++k) {
        own[8 * i + k] = (kLifts ? values[k] * lift : values[k]) * inverse;
      }
    }
    uint32_t words[8];
    FS_UNROLL
    for (int i = 0; i < 8; ++i) {
      words[i] = Codes::narrow(own[Codes::column(i, 0)], own[Codes::column(i, 1)],
                               own[Codes::column(i, 2)], own[Codes::column(i, 3)]);
      // Adds bytes q + 128, less 128 for each.
      if constexpr (Codes::kSums) sum = dp4a(words[i] ^ 0x80808080, 0x01010101, sum - 4 * 128);
    }
    const int64_t place = int64_t{blockIdx.x} * blocks + block;
    if constexpr (Codes::kWide) {
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        uint4 eight;
        widen_fp8<Type>(words[2 * i], eight.x, eight.y);
        widen_fp8<Type>(words[2 * i + 1], eight.z, eight.w);
        store_global(codes + place * 4 + i, eight);
      }
    } else {
      store_global(codes + place * 2, make_uint4(words[0], words[1], words[2], words[3]));
      store_global(codes + place * 2 + 1, make_uint4(words[4], words[5], words[6], words[7]));
    }
  }
  if constexpr (Codes::kSums) {
    sum = block_sum<kQuantiseThreads>(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  }
}

}  // namespace flashsparse::mma_units
