// SPDX-License-Identifier: Apache-2.0
// Converts stored values to operand A of mma, by the type of the values.
#pragma once
#include "common/widen.cuh"
#include "formats/value_type.h"

namespace flashsparse {

// Fragments of A, eight values of a lane each, in its 16 bytes.
FS_HOST_DEVICE constexpr int fragments_in_vector(ValueType type) { return 16 / bits_of(type); }

// Converts fragment `number` of a vector to Type, without scales. Values are stored in the order in
// which they come out here (common/widen.cuh).
template <class Type, ValueType kValues>
__device__ __forceinline__ void widen_values(const uint4& vector, int number, uint32_t (&a)[4]) {
  if constexpr (kValues == ValueType::kNative) {
    a[0] = vector.x, a[1] = vector.y, a[2] = vector.z, a[3] = vector.w;
  } else if constexpr (bits_of(kValues) == 4) {
    widen_int4<Type>(number == 0   ? vector.x
                     : number == 1 ? vector.y
                     : number == 2 ? vector.z
                                   : vector.w,
                     a);
  } else {
    const uint32_t low = number == 0 ? vector.x : vector.z;
    const uint32_t high = number == 0 ? vector.y : vector.w;
    if constexpr (kValues == ValueType::kFp8) {
      widen_fp8<Type>(low, a[0], a[1]);
      widen_fp8<Type>(high, a[2], a[3]);
    } else {
      widen_int8<Type>(low, a[0], a[1]);
      widen_int8<Type>(high, a[2], a[3]);
    }
  }
}

}  // namespace flashsparse
