// SPDX-License-Identifier: Apache-2.0
// How the values of a unit are stored, and how they become the A operand of mma.sp: what differs
// between value types, and nothing else does.
//   kStepBytes                     of a step, all lanes
//   load(a, step, address)         the lane's four words of a step; `address` is that of the unit
//   in
//                                  shared memory, for this lane
#pragma once
#include "common/memory.cuh"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// 16-bit values, as the instruction takes them.
struct NativeValues {
  static constexpr int kStepBytes = sparse_24::kStepBytes;

  static __device__ __forceinline__ void load(uint32_t (&a)[4], int step, uint32_t address) {
    const uint4 words = load_shared<uint4>(address + step * kStepBytes);
    a[0] = words.x, a[1] = words.y, a[2] = words.z, a[3] = words.w;
  }
};

}  // namespace flashsparse::sparse_24
