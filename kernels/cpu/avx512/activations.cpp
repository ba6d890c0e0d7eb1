// SPDX-License-Identifier: Apache-2.0
// Activations in, results out: the only places where a dtype is converted.
#include "cpu/avx512/parts.h"
#include "cpu/avx512/vector.h"

namespace {

using flashsparse::Dtype;

FS_INLINE Floats float32_of_bfloat16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// 16 activations from `index` on as fp32, zeros beyond `count`.
FS_INLINE Floats load_activations(const void* x, Dtype dtype, int64_t index, int64_t count) {
  const __mmask16 lanes = lanes16(count);
  if (dtype == Dtype::kFloat32) {
    return _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(x) + index);
  }
  const __m256i bits =
      _mm256_maskz_loadu_epi16(lanes, static_cast<const uint16_t*>(x) + index);
  return dtype == Dtype::kFloat16 ? _mm512_cvtph_ps(bits) : float32_of_bfloat16(bits);
}

}  // namespace

namespace flashsparse::cpu::avx512 {

// packed[pair][token] = bf16 pair, as 32 bits.
void pack_bfloat16_activations(const void* x, Dtype, int64_t in_features, int tokens, int64_t first,
                               int64_t last, void* packed) {
  uint32_t* out = static_cast<uint32_t*>(packed) + first * tokens;
  for (int64_t pair = first; pair < last; pair += 16) {
    Bits row[16];  // of one token each, then of one pair each
    const __mmask32 lanes = lanes32(in_features - 2 * pair);
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) {
      row[t] = t < tokens ? _mm512_maskz_loadu_epi16(
                                lanes, static_cast<const uint16_t*>(x) + t * in_features + 2 * pair)
                          : _mm512_setzero_si512();
    }
    transpose16x16(row);
    const int64_t count = last - pair < 16 ? last - pair : 16;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i < count) _mm512_mask_storeu_epi32(out, lanes16(tokens), row[i]);
      out += tokens;
    }
  }
}

// packed[column][token] = fp32; a pair is two columns.
void pack_float32_activations(const void* x, Dtype dtype, int64_t in_features, int tokens,
                              int64_t first, int64_t last, void* packed) {
  float* out = static_cast<float*>(packed) + 2 * first * tokens;
  for (int64_t col = 2 * first; col < 2 * last; col += 16) {
    Bits row[16];
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) {
      row[t] = t < tokens ? _mm512_castps_si512(load_activations(x, dtype, t * in_features + col,
                                                                 in_features - col))
                          : _mm512_setzero_si512();
    }
    transpose16x16(row);
    const int64_t count = 2 * last - col < 16 ? 2 * last - col : 16;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i < count) _mm512_mask_storeu_epi32(out, lanes16(tokens), row[i]);
      out += tokens;
    }
  }
}

void store(const float* sums, int tokens, const float* bias, int rows, void* y, int64_t stride,
           Dtype dtype) {
  const __mmask16 lanes = lanes16(rows);
  const Floats shift = _mm512_loadu_ps(bias);
  for (int t = 0; t < tokens; ++t) {
    const Floats result = _mm512_add_ps(_mm512_loadu_ps(sums + 16 * t), shift);
    if (dtype == Dtype::kFloat32) {
      _mm512_mask_storeu_ps(static_cast<float*>(y) + t * stride, lanes, result);
      continue;
    }
    const __m256i bits = dtype == Dtype::kFloat16
                             ? _mm512_cvtps_ph(result, _MM_FROUND_TO_NEAREST_INT)
                             : reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(result));
    _mm256_mask_storeu_epi16(static_cast<uint16_t*>(y) + t * stride, lanes, bits);
  }
}

}  // namespace flashsparse::cpu::avx512
