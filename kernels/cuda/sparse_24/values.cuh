// SPDX-License-Identifier: Apache-2.0
// How the values of a unit become the A operand of mma.sp: all that differs between value types.
//   kLayout                      of a unit
//   widen<Type>(a, vector, step) converts the lane's four words of a step to Type, without scales;
//                                `step` counts those that a vector holds
#pragma once
#include "cuda/shared/widen_values.cuh"
#include "formats/sparse_24.h"

namespace flashsparse::sparse_24 {

template <ValueType type, int group>
struct StoredValues {
  static constexpr UnitLayout kLayout{type, group};

  template <class Type>
  static __device__ __forceinline__ void widen(uint32_t (&a)[4], const uint4& vector, int step) {
    widen_values<Type, type>(vector, step, a);
  }
};

struct NativeValues : StoredValues<ValueType::kNative, 0> {};

// Fp8Values, Int8Values, ... `group`: columns that share a scale; 0 with scales of rows.
#define FS_VALUES(name, ...) \
  template <int group>       \
  struct name##Values : StoredValues<ValueType::k##name, group> {};
FS_QUANTIZED_TYPES(FS_VALUES)
#undef FS_VALUES

// Calls `f` with an object of the class for a layout.
template <template <int> class Quantized, class F>
auto with_group(int group, const F& f) {
  return group == 0    ? f(Quantized<0>{})
         : group == 32 ? f(Quantized<32>{})
         : group == 64 ? f(Quantized<64>{})
                       : f(Quantized<128>{});
}
#define FS_CALL(name, ...) \
  if (unit.type == ValueType::k##name) return with_group<name##Values>(unit.group, f);
template <class F>
auto with_values(UnitLayout unit, const F& f) {
  FS_QUANTIZED_TYPES(FS_CALL)
  return f(NativeValues{});
}
#undef FS_CALL

}  // namespace flashsparse::sparse_24
