// SPDX-License-Identifier: Apache-2.0
// y = act(gate) * up. The activation is rounded before it is multiplied, as torch's ops do.
#pragma once
#include <cmath>

#include "common/memory.cuh"
#include "cuda/elementwise/eight.cuh"
#include "cuda/elementwise/gate_mul_arguments.h"

namespace flashsparse::elementwise {

template <Gate gate>
__device__ __forceinline__ float activate(float x) {
  if constexpr (gate == Gate::kSilu) return x / (1 + expf(-x));
  constexpr float kSlope = 0.7978845608028654f, kCubic = 0.044715f;  // sqrt(2 / pi)
  return 0.5f * x * (1 + tanhf(kSlope * (x + kCubic * x * x * x)));
}

// Launch with a.tokens x a.blocks() blocks of kGateThreads threads.
template <class Type, Gate gate>
__global__ void __launch_bounds__(kGateThreads) gate_mul_kernel(const GateMulArguments a) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const int64_t token = blockIdx.x;
  const int column = (blockIdx.y * kGateThreads + threadIdx.x) * 8;
  if (column >= a.columns) return;
  const uint16_t* const x = a.x + (token * a.x_token + column);
  Eight<Type> values(load_global(reinterpret_cast<const uint4*>(x)));
  const Eight<Type> up(load_global(reinterpret_cast<const uint4*>(x + a.columns)));
  FS_UNROLL
  for (int i = 0; i < 8; ++i) values.of[i] = rounded<Type>(activate<gate>(values.of[i])) * up.of[i];
  store_global(reinterpret_cast<uint4*>(a.y + (token * a.columns + column)), values.bits());
}

template <class Type>
auto gate_mul_kernel_of(Gate gate) {
  return gate == Gate::kSilu ? gate_mul_kernel<Type, Gate::kSilu>
                             : gate_mul_kernel<Type, Gate::kGeluTanh>;
}

}  // namespace flashsparse::elementwise
