// SPDX-License-Identifier: Apache-2.0
// Packs activations and stores results: the only conversions between dtypes.
#include "cpu/avx512/parts.h"
#include "cpu/avx512/vector.h"

namespace {

using flashsparse::Dtype;

FS_INLINE Floats float32_of_bfloat16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// 16 activations from `index` on as fp32; zeros past `count`.
FS_INLINE Floats load_activations(const void* x, Dtype dtype, int64_t index, int64_t count) {
  const __mmask16 lanes = lanes16(count);
  if (dtype == Dtype::kFloat32) {
    return _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(x) + index);
  }
  const __m256i bits = _mm256_maskz_loadu_epi16(lanes, static_cast<const uint16_t*>(x) + index);
  return dtype == Dtype::kFloat16 ? _mm512_cvtph_ps(bits) : float32_of_bfloat16(bits);
}

// out[col * stride + row] = 32-bit lane `col` of row `row`, for rows < `rows` and at most 16.
// load(row, col) gives lanes [col, col + 16) of a row.
template <typename Load>
FS_INLINE void transpose_columns(uint32_t* out, int stride, int rows, int64_t first, int64_t last,
                                 const Load& load) {
  for (int64_t col = first; col < last; col += 16) {
    Bits lanes[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) lanes[r] = r < rows ? load(r, col) : _mm512_setzero_si512();
    transpose16x16(lanes);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (col + i < last) {
        _mm512_mask_storeu_epi32(out + (col + i) * stride, lanes16(rows), lanes[i]);
      }
    }
  }
}

// Rounds to nearest even; NaN stays NaN. vcvtneps2bf16 would flush subnormal numbers to zero.
FS_INLINE __m256i round_to_bfloat16(Floats values) {
  const Bits bits = _mm512_castps_si512(values), high = _mm512_srli_epi32(bits, 16);
  const Bits odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const Bits up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  const Bits rounded =
      _mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), nan, high, _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(rounded);
}

}  // namespace

namespace flashsparse::cpu::avx512 {

// packed[pair][token] = bf16 pair, as 32 bits.
void pack_bfloat16_activations(const void* x, Dtype, int64_t in_features, int tokens, int64_t first,
                               int64_t last, void* packed) {
  for (int t = 0; t < tokens; t += 16) {
    const uint16_t* rows = static_cast<const uint16_t*>(x) + t * in_features;
    transpose_columns(static_cast<uint32_t*>(packed) + t, tokens, tokens - t, first, last,
                      [=](int token, int64_t pair) {
                        return _mm512_maskz_loadu_epi16(lanes32(in_features - 2 * pair),
                                                        rows + token * in_features + 2 * pair);
                      });
  }
}

// packed[column][token] = fp32; a pair is two columns.
void pack_float32_activations(const void* x, Dtype dtype, int64_t in_features, int tokens,
                              int64_t first, int64_t last, void* packed) {
  for (int t = 0; t < tokens; t += 16) {
    transpose_columns(static_cast<uint32_t*>(packed) + t, tokens, tokens - t, 2 * first, 2 * last,
                      [=](int token, int64_t col) {
                        return _mm512_castps_si512(load_activations(
                            x, dtype, (t + token) * in_features + col, in_features - col));
                      });
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
                             : round_to_bfloat16(result);
    _mm256_mask_storeu_epi16(static_cast<uint16_t*>(y) + t * stride, lanes, bits);
  }
}

}  // namespace flashsparse::cpu::avx512
