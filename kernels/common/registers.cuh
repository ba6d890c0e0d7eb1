// SPDX-License-Identifier: Apache-2.0
// What the compiler should keep in registers.
#pragma once
#include "common/device.cuh"

namespace flashsparse {

// Hides how a number or an address came about, so that it stays in a register: the compiler may
// otherwise work it out again, from the start, in every turn of a loop. T has 4 or 8 bytes.
template <class T>
__device__ __forceinline__ T keep(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "of one register or of two");
#ifdef __CUDACC__
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
#endif
  return value;
}

// No load is moved to the front of this point: what the lanes do before it may have to be on its
// way first. All lanes of a warp come here.
__device__ __forceinline__ void keep_order() {
#ifdef __CUDACC__
  __syncwarp();
#endif
}

// Hands registers over between the warpgroups of a block, so that each of their threads has `count`
// from here on, a multiple of 8. All warps of a warpgroup come here; who takes waits until others
// have released enough. sm_90a only.
template <int count>
__device__ __forceinline__ void release_registers() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
template <int count>
__device__ __forceinline__ void take_registers() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

}  // namespace flashsparse
