// SPDX-License-Identifier: Apache-2.0
// Controls registers: what stays in them, and how many a warpgroup has.
#pragma once
#include "common/device.cuh"

namespace flashsparse {

// Hides from the compiler how a value was computed, so that it stays in a register. Otherwise the
// compiler may recompute it in every iteration of a loop. T has 4 or 8 bytes.
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

// Keeps the compiler from moving loads above this point. All lanes of a warp call it.
__device__ __forceinline__ void keep_order() {
#ifdef __CUDACC__
  __syncwarp();
#endif
}

// setmaxnreg: moves registers between the warpgroups of a block, so that each thread has `count` of
// them, a multiple of 8. All warps of a warpgroup call it; setmaxnreg_inc waits until others have
// released enough. sm_90a only.
template <int count>
__device__ __forceinline__ void setmaxnreg_dec() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
template <int count>
__device__ __forceinline__ void setmaxnreg_inc() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

}  // namespace flashsparse
