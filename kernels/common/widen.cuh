// SPDX-License-Identifier: Apache-2.0
// Converts 8-bit and 4-bit values to pairs of 16-bit floats, exactly, for tensor cores.
//
// Bit operations place a value in the mantissa or the exponent of a 16-bit float, and one packed
// fma corrects its exponent or its sign. Instructions for four 8-bit values, float16 and bfloat16:
// fp8_e4m3 2 (8 before sm_89) and 8, int8 5 and 7, bytes 4 and 4; for eight 4-bit values: 9 and 11.
#pragma once
#include "common/device.cuh"
#include "common/integer.cuh"
#include "common/mma.cuh"

namespace flashsparse {

namespace detail {

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t fma_two(Float16, uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ uint32_t fma_two(BFloat16, uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
#else
template <class Type>
uint32_t fma_two(Type, uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const auto value = [&](uint32_t two) {
      return double{kFloats<Type>.data()[two >> shift & 0xffff]};
    };
    // Exact in fp64, except for sums of numbers of very different magnitude, which are rounded
    // twice here.
    const auto sum = static_cast<float>(value(a) * value(b) + value(c));
    d |= uint32_t{from_float(Type{}, sum)} << shift;
  }
  return d;
}
#endif

}  // namespace detail

// a * b + c for both halves of a word, rounded once.
template <class Type>
__device__ __forceinline__ uint32_t fma_two(uint32_t a, uint32_t b, uint32_t c) {
  return detail::fma_two(Type{}, a, b, c);
}

template <class Type>
inline constexpr bool kIsFloat16 = false;
template <>
inline constexpr bool kIsFloat16<Float16> = true;

// Four e4m3 values, none of them NaN: bytes 0 and 1 to the halves of a0, 2 and 3 to those of a1.
template <class Type>
__device__ __forceinline__ void widen_fp8(uint32_t w, uint32_t& a0, uint32_t& a1) {
#if defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890)
  if constexpr (kIsFloat16<Type>) {
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n"
        "}"
        : "=r"(a0), "=r"(a1)
        : "r"(w));
    return;
  }
#endif
  // Moves sign, exponent and mantissa to their position in the wider float, by shifting bytes that
  // prmt has sign-extended. The exponent is then too small by the difference of the biases, also
  // for subnormals.
  constexpr int kShift = kIsFloat16<Type> ? 7 : 4;
  constexpr uint32_t kKept = kIsFloat16<Type> ? 0xbf80bf80 : 0x87f087f0;
  constexpr uint32_t kScale = kIsFloat16<Type> ? 0x5c005c00 : 0x7b807b80;  // 2^8, 2^120
  const uint32_t two[2] = {prmt(w, 0, 0x9180), prmt(w, 0, 0xb3a2)};
  uint32_t* const to[2] = {&a0, &a1};
  FS_UNROLL
  for (int i = 0; i < 2; ++i) {
    // The addend -0 changes nothing.
    *to[i] = fma_two<Type>(two[i] << kShift & kKept, kScale, 0x80008000);
  }
}

// Four int8 values: bytes 0 and 2 to the halves of a0, 1 and 3 to those of a1.
template <class Type>
__device__ __forceinline__ void widen_int8(uint32_t w, uint32_t& a0, uint32_t& a1) {
  if constexpr (kIsFloat16<Type>) {
    const uint32_t above = w ^ 0x80808080;  // value + 128, which fits into the mantissa of 1024
    a0 = fma_two<Type>(prmt(above, 0x64646464, 0x4240), 0x3c003c00, 0xe480e480);
    a1 = fma_two<Type>(prmt(above, 0x64646464, 0x4341), 0x3c003c00, 0xe480e480);
  } else {
    // Seven bits fit into the mantissa of 128; the eighth turns the addend -128 into -256.
    const uint32_t two[2] = {w, w >> 8};
    a0 = fma_two<Type>(and_xor(two[0], 0x007f007f, 0x43004300), 0x3f803f80,
                       and_xor(two[0], 0x00800080, 0xc300c300));
    a1 = fma_two<Type>(and_xor(two[1], 0x007f007f, 0x43004300), 0x3f803f80,
                       and_xor(two[1], 0x00800080, 0xc300c300));
  }
}

// Four int8 values as bytes value + 128: 0 and 1 to the halves of a0, 2 and 3 to those of a1. The
// results are value * kWidenedByte.
template <class Type>
inline constexpr float kWidenedByte = kIsFloat16<Type> ? 1 : 1.0f / 64;
template <class Type>
__device__ __forceinline__ void widen_bytes(uint32_t w, uint32_t& a0, uint32_t& a1) {
  // In float16 a byte fits into the mantissa of 1024. In bfloat16, whose mantissa has 7 bits, it is
  // a subnormal number or, from 128 on, one of the next larger ones: byte * -2^-133 with this sign,
  // which is multiplied by -2^127.
  constexpr uint32_t kUpper = kIsFloat16<Type> ? 0x64646464 : 0x80808080;
  constexpr uint32_t kScale = kIsFloat16<Type> ? 0x3c003c00 : 0xff00ff00;
  constexpr uint32_t kLess = kIsFloat16<Type> ? 0xe480e480 : 0xc000c000;  // -1152; -2
  a0 = fma_two<Type>(prmt(w, kUpper, 0x4140), kScale, kLess);
  a1 = fma_two<Type>(prmt(w, kUpper, 0x4342), kScale, kLess);
}

// Eight int4 values: nibble i to the low half of a[i], nibble i + 4 to the high half.
template <class Type>
__device__ __forceinline__ void widen_int4(uint32_t w, uint32_t (&a)[4]) {
  if constexpr (kIsFloat16<Type>) {
    // 1024 + (value + 8), or 1024 + 16 (value + 8).
    FS_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const uint32_t two = w >> 4 * i;
      a[i] = fma_two<Type>(and_xor(two, 0x000f000f, 0x64086408), 0x3c003c00, 0xe408e408);
      a[i + 1] = fma_two<Type>(and_xor(two, 0x00f000f0, 0x64806480), 0x2c002c00, 0xd480d480);
    }
  } else {
    FS_UNROLL
    for (int i = 0; i < 4; ++i) {
      a[i] = fma_two<Type>(and_xor(w >> 4 * i, 0x000f000f, 0x43084308), 0x3f803f80, 0xc308c308);
    }
  }
}

}  // namespace flashsparse
