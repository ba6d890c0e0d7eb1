// SPDX-License-Identifier: Apache-2.0
// Integer instructions that combine several operations, unsigned and modulo 2^32.
#pragma once
#include "common/device.cuh"

namespace flashsparse {

// c + a.low16 * b.byte0 + a.high16 * b.byte1.
__device__ __forceinline__ uint32_t dp2a_lo(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __CUDACC__
  uint32_t d;
  asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  return c + (a & 0xffff) * (b & 0xff) + (a >> 16) * (b >> 8 & 0xff);
#endif
}

// c + a.low16 * b.byte2 + a.high16 * b.byte3.
__device__ __forceinline__ uint32_t dp2a_hi(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __CUDACC__
  uint32_t d;
  asm("dp2a.hi.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  return dp2a_lo(a, b >> 16, c);
#endif
}

// c + the sum of a.byte_i * b.byte_i.
__device__ __forceinline__ uint32_t dp4a(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __CUDACC__
  uint32_t d;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  for (int i = 0; i < 32; i += 8) c += (a >> i & 0xff) * (b >> i & 0xff);
  return c;
#endif
}

// The lower word of upper:lower, shifted right by `bits` modulo 32.
__device__ __forceinline__ uint32_t funnel_right(uint32_t lower, uint32_t upper, uint32_t bits) {
#ifdef __CUDACC__
  return __funnelshift_r(lower, upper, bits);
#else
  return static_cast<uint32_t>((static_cast<uint64_t>(upper) << 32 | lower) >> (bits & 31));
#endif
}
// The same with `bits` clamped to 32.
__device__ __forceinline__ uint32_t funnel_right_clamped(uint32_t lower, uint32_t upper,
                                                         uint32_t bits) {
#ifdef __CUDACC__
  return __funnelshift_rc(lower, upper, bits);
#else
  return static_cast<uint32_t>((static_cast<uint64_t>(upper) << 32 | lower) >>
                               (bits < 32 ? bits : 32));
#endif
}

// (a & mask) ^ bits in one instruction: with two constants the compiler emits two.
__device__ __forceinline__ uint32_t and_xor(uint32_t a, uint32_t mask, uint32_t bits) {
#ifdef __CUDACC__
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
#else
  return (a & mask) ^ bits;
#endif
}

// Byte i of the result is selected by nibble i of the selector: its low 3 bits are the number of a
// byte of b:a (a the lower four); if its high bit is set, all bits of the result become the sign of
// that byte. PTX prmt in its default mode: __byte_perm does not replicate signs.
__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d = 0;
#ifdef __CUDACC__
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
#else
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> 4 * i & 0xf;
    uint32_t byte = bytes >> 8 * (nibble & 7) & 0xff;
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    d |= byte << 8 * i;
  }
#endif
  return d;
}

}  // namespace flashsparse
