// SPDX-License-Identifier: Apache-2.0
// y = (x + residual) / rms(x + residual) * weight, a block a row. A row's bits do not depend on
// which others there are.
#pragma once
#include "common/float32.cuh"
#include "common/memory.cuh"
#include "cuda/elementwise/eight.cuh"
#include "cuda/elementwise/rms_norm_arguments.h"

namespace flashsparse::elementwise {

// The sum over all threads, in an order that depends on their number alone. Every thread gets it.
__device__ __forceinline__ float block_sum(float sum) {
  FS_SHARED(float, of_warps, kNormThreads / 32);
  FS_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  FS_NO_UNROLL
  for (int warp = 0; warp < static_cast<int>(blockDim.x / 32); ++warp) sum += of_warps[warp];
  return sum;
}

// Launch with a block for each token (x) and head (y), and a.threads() threads; kVectors is at
// least a.vectors_per_thread().
template <class Type, int kVectors>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(const RmsNormArguments a) {
  griddepcontrol_launch_dependents();
  const int vectors = a.vectors();
  const auto at = [&](const uint16_t* from, int i) {
    return reinterpret_cast<const uint4*>(from) + (threadIdx.x + i * blockDim.x);
  };
  const auto is_inside = [&](int i) {
    return static_cast<int>(threadIdx.x + i * blockDim.x) < vectors;
  };
  uint4 weight[kVectors];
  FS_UNROLL
  for (int i = 0; i < kVectors; ++i)
    weight[i] = is_inside(i) ? load_readonly(at(a.weight, i)) : uint4{};
  griddepcontrol_wait();

  const int64_t token = blockIdx.x, head = blockIdx.y;
  const uint16_t* const x = a.x + (token * a.x_token + head * a.x_head);
  const int64_t row = (token * a.heads + head) * a.columns;
  Eight<Type> values[kVectors];
  FS_UNROLL
  for (int i = 0; i < kVectors; ++i)
    values[i] = Eight<Type>(is_inside(i) ? load_global(at(x, i)) : uint4{});
  if (a.residual) {
    const uint16_t* const residual =
        a.residual + (token * a.residual_token + head * a.residual_head);
    FS_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      if (!is_inside(i)) continue;
      const Eight<Type> more(load_global(at(residual, i)));
      FS_UNROLL
      for (int k = 0; k < 8; ++k) values[i].of[k] += more.of[k];
      store_global(const_cast<uint4*>(at(a.sum + row, i)), values[i].bits());
    }
  }
  float squares = 0;
  FS_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    FS_UNROLL
    for (int k = 0; k < 8; ++k) squares += values[i].of[k] * values[i].of[k];
  }
  const float mean = block_sum(squares) / static_cast<float>(a.columns);
  const float scale = reciprocal_sqrt_approx(mean + a.epsilon);
  FS_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    if (!is_inside(i)) continue;
    const Eight<Type> by(weight[i]);
    FS_UNROLL
    for (int k = 0; k < 8; ++k) {
      float& value = values[i].of[k];
      value *= scale;
      value = a.adds_one ? value * (1 + by.of[k]) : rounded<Type>(value) * by.of[k];
    }
    store_global(const_cast<uint4*>(at(a.y + row, i)), values[i].bits());
  }
}

// The kernel for so many vectors a thread, at most kMaxNormVectors.
template <class Type>
auto rms_norm_kernel_of(int vectors) {
  return vectors <= 1   ? rms_norm_kernel<Type, 1>
         : vectors <= 2 ? rms_norm_kernel<Type, 2>
                        : rms_norm_kernel<Type, kMaxNormVectors>;
}

}  // namespace flashsparse::elementwise
