// SPDX-License-Identifier: Apache-2.0
// How the values of a unit become the A operand of mma.sp: all that differs between value types.
//   kLayout                      of a unit
//   widen<Type>(a, vector, step) converts the lane's four words of a step to Type, without scales;
//                                `step` counts those that a vector holds
#pragma once
#include "common/device.cuh"
#include "common/widen.cuh"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

// 16-bit values, in the order that the instruction takes.
struct NativeValues {
  static constexpr UnitLayout kLayout{};

  template <class Type>
  static __device__ __forceinline__ void widen(uint32_t (&a)[4], const uint4& vector, int) {
    a[0] = vector.x, a[1] = vector.y, a[2] = vector.z, a[3] = vector.w;
  }
};

// Quantized values. `group`: columns that share a scale; 0 with scales of rows.
template <int group>
struct Fp8Values {
  static constexpr UnitLayout kLayout{ValueType::kFp8, group};

  template <class Type>
  static __device__ __forceinline__ void widen(uint32_t (&a)[4], const uint4& vector, int step) {
    widen_fp8<Type>(step == 0 ? vector.x : vector.z, a[0], a[1]);
    widen_fp8<Type>(step == 0 ? vector.y : vector.w, a[2], a[3]);
  }
};

template <int group>
struct Int8Values {
  static constexpr UnitLayout kLayout{ValueType::kInt8, group};

  template <class Type>
  static __device__ __forceinline__ void widen(uint32_t (&a)[4], const uint4& vector, int step) {
    widen_int8<Type>(step == 0 ? vector.x : vector.z, a[0], a[1]);
    widen_int8<Type>(step == 0 ? vector.y : vector.w, a[2], a[3]);
  }
};

template <int group>
struct Int4Values {
  static constexpr UnitLayout kLayout{ValueType::kInt4, group};

  template <class Type>
  static __device__ __forceinline__ void widen(uint32_t (&a)[4], const uint4& vector, int step) {
    widen_int4<Type>(step == 0   ? vector.x
                     : step == 1 ? vector.y
                     : step == 2 ? vector.z
                                 : vector.w,
                     a);
  }
};

// Calls `f` with an object of the class for a layout.
template <template <int> class Codes, class F>
auto with_codes(int group, const F& f) {
  return group == 0    ? f(Codes<0>{})
         : group == 32 ? f(Codes<32>{})
         : group == 64 ? f(Codes<64>{})
                       : f(Codes<128>{});
}
template <class F>
auto with_values(UnitLayout unit, const F& f) {
  switch (unit.type) {
    case ValueType::kFp8:
      return with_codes<Fp8Values>(unit.group, f);
    case ValueType::kInt8:
      return with_codes<Int8Values>(unit.group, f);
    case ValueType::kInt4:
      return with_codes<Int4Values>(unit.group, f);
    default:
      return f(NativeValues{});
  }
}

}  // namespace flashsparse::sparse_24
