// SPDX-License-Identifier: Apache-2.0
// The 512-bit operations that the kernels in this folder share.
//
// How one mask word becomes one operand of vdpbf16ps (4 of its 16 rows drawn):
//
//   mask word       row 0   row 1   row 2   row 3   ...     bit 2*row + (col & 1)
//                   1  0    1  1    0  0    0  1
//   values in memory, in mask order                 a b c d | next mask word's values ...
//   expand (vpexpandw)
//   16-bit lanes    a  0    b  c    0  0    0  d            one load, one instruction
//   activation      x0 x1   x0 x1   x0 x1   x0 x1           one column pair, broadcast
//   vdpbf16ps       + a*x0  + b*x0  + 0     + d*x1          fp32 lane r is row r of the panel
//                             + c*x1
//   values += popcount(mask word)
//
// Everything here has internal linkage: these files are compiled for CPUs with AVX-512, and the
// linker must not choose one of their copies of a shared inline function for portable code.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

using Bits = __m512i;  // 16 rows x 2 columns of 16-bit values, or 16 32-bit words
using Floats = __m512;

#define FS_INLINE inline __attribute__((always_inline))

// A zeroed register that the compiler cannot share with another one. On Zen 4 and Zen 5 vpexpand
// and vpcompress wait for the last writer of their destination, even when zero-masking makes its
// value irrelevant, which chains them at 5 cycles each. Merging into a register that a zeroing
// idiom has just renamed is the same operation without the wait (1.1 cycles).
FS_INLINE Bits fresh_zero(uint32_t mask) {
  Bits zero;
  asm("vpxor %x0, %x0, %x0" : "=x"(zero) : "r"(mask));
  return zero;
}

FS_INLINE uint32_t load_u32(const void* pointer) {
  uint32_t value;
  __builtin_memcpy(&value, pointer, sizeof value);
  return value;
}
FS_INLINE uint64_t load_u64(const void* pointer) {
  uint64_t value;
  __builtin_memcpy(&value, pointer, sizeof value);
  return value;
}
FS_INLINE float load_f32(const void* pointer) {
  float value;
  __builtin_memcpy(&value, pointer, sizeof value);
  return value;
}

// The i-th set bit of `mask` gets values[i], the others zero.
FS_INLINE Bits expand(uint32_t mask, const uint16_t* values) {
  return _mm512_mask_expand_epi16(fresh_zero(mask), mask, _mm512_loadu_si512(values));
}
// The same of bytes, sign-extended to 16 bits.
FS_INLINE Bits expand_codes(uint32_t mask, const int8_t* codes) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const __m256i zero = _mm512_castsi512_si256(fresh_zero(mask));
  return _mm512_cvtepi8_epi16(_mm256_mask_expand_epi8(zero, mask, bytes));
}
// The same of 16 32-bit values.
FS_INLINE Bits expand32(uint32_t mask, const uint32_t* values) {
  return _mm512_mask_expand_epi32(fresh_zero(mask), static_cast<__mmask16>(mask),
                                  _mm512_loadu_si512(values));
}
// Moves the lanes of set bits together, to the low end.
FS_INLINE Bits compress16(uint32_t mask, Bits lanes) {
  return _mm512_mask_compress_epi16(fresh_zero(mask), mask, lanes);
}
FS_INLINE Bits compress32(uint32_t mask, Bits lanes) {
  return _mm512_mask_compress_epi32(fresh_zero(mask), static_cast<__mmask16>(mask), lanes);
}

// Even (low half) and odd (high half) columns of a bf16 column pair as fp32.
FS_INLINE Floats even_bfloat16(Bits pair) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
}
FS_INLINE Floats odd_bfloat16(Bits pair) {
  return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(-0x10000)));
}
// The same of an fp16 column pair.
FS_INLINE Floats even_float16(Bits pair) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pair)); }
FS_INLINE Floats odd_float16(Bits pair) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16)));
}

// The same of a pair of 16-bit integers.
FS_INLINE Floats even_integer(Bits pair) {
  return _mm512_cvtepi32_ps(_mm512_madd_epi16(pair, _mm512_set1_epi32(1)));
}
FS_INLINE Floats odd_integer(Bits pair) { return _mm512_cvtepi32_ps(_mm512_srai_epi32(pair, 16)); }

// Prefetches to L1 what the kernel will read `bytes_ahead` later. A prefetch never faults.
FS_INLINE void prefetch(const void* pointer, intptr_t bytes_ahead) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer) + bytes_ahead;
  _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0);
}

// Mask of the lowest `count` of 32 or 16 lanes; count may be anything.
FS_INLINE __mmask32 lanes32(int64_t count) {
  return count >= 32 ? ~0u : count <= 0 ? 0u : (1u << count) - 1;
}
FS_INLINE __mmask16 lanes16(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1);
}

// Moves 16-byte chunk c of four to chunk c ^ by, by < 4: the part of Tiled-CSL's swizzle within a
// register. Its own inverse.
FS_INLINE Bits swap_chunks(Bits chunks, int by) {
  switch (by) {
    case 1:
      return _mm512_shuffle_i64x2(chunks, chunks, 0xb1);
    case 2:
      return _mm512_shuffle_i64x2(chunks, chunks, 0x4e);
    case 3:
      return _mm512_shuffle_i64x2(chunks, chunks, 0x1b);
    default:
      return chunks;
  }
}

// row[i] lane j <-> row[j] lane i, for 32-bit lanes.
FS_INLINE void transpose16x16(Bits (&row)[16]) {
  Bits t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    row[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    row[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    row[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    row[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(row[i], row[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(row[i], row[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(row[i + 8], row[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(row[i + 8], row[i + 12], 0xdd);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    row[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    row[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

}  // namespace
