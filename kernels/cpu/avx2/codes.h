// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <immintrin.h>

#include "cpu/codes.h"

namespace {

FS_VECTOR_INLINE void load_signed(const uint8_t* from, Signed& to) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  to = reinterpret_cast<Signed>(_mm256_cvtepi8_epi32(bytes));
}

FS_VECTOR_INLINE void load_fp8(const uint8_t* from, Floats& to) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  // The sign is in all bits above exponent and fraction.
  const __m128i shifted = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
  const __m128i mask = _mm_set1_epi16(static_cast<int16_t>(0xbf80));
  to = _mm256_cvtph_ps(_mm_and_si128(shifted, mask));
}

}  // namespace
