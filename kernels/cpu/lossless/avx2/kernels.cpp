// SPDX-License-Identifier: Apache-2.0
#include "cpu/lossless/kernels.h"

#include <immintrin.h>

#include "cpu/lossless/order.h"
#include "cpu/lossless/rows.h"

namespace {

using namespace flashsparse::lossless;

constexpr int kTokens = 4;
constexpr int kAhead = 4096;  // bytes that are prefetched in front of what is read
constexpr Order<32, true> kOrder;

void pack_activations(const void* x, Dtype dtype, int64_t columns, void* packed) {
  pack_in_order(kOrder, x, dtype, columns, static_cast<float*>(packed));
}

// The two bytes of bf16 for each code of a row, but for sign and fraction.
struct Exponents {
  __m256i high, low;
};
inline Exponents exponents_of(uint8_t base) {
  const __m256i codes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  const __m256i zero = _mm256_cmpeq_epi8(codes, _mm256_setzero_si256());
  const __m256i exponents =
      _mm256_andnot_si256(zero, _mm256_add_epi8(codes, _mm256_set1_epi8(static_cast<char>(base))));
  return {
      _mm256_and_si256(_mm256_srli_epi16(exponents, 1), _mm256_set1_epi8(0x7f)),
      _mm256_and_si256(_mm256_slli_epi16(exponents, 7), _mm256_set1_epi8(static_cast<char>(0x80)))};
}

inline float sum_of(__m256 parts) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(parts), _mm256_extractf128_ps(parts, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

template <int kCount>
void multiply_tokens(const uint8_t* const (&rows)[kRows], const uint8_t (&bases)[kRows],
                     int64_t chunks, const char* packed, int64_t stride, float* sums) {
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i nibble = _mm256_set1_epi8(0xf);
  const __m256i odd = _mm256_set1_epi32(-0x10000);
  Exponents exponents[kRows];
  for (int i = 0; i < kRows; ++i) exponents[i] = exponents_of(bases[i]);
  __m256 parts[kRows][kCount][kCount == 1 ? 2 : 1] = {};
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int block = 0; block < 4; ++block) {  // 32 columns
      const float* x = reinterpret_cast<const float*>(packed) + chunk * kChunkColumns + 32 * block;
#pragma GCC unroll 2
      for (int i = 0; i < kRows; ++i) {
        const uint8_t* from = rows[i] + chunk * kChunkBytes;
        if (block != 3)
          _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead + 64 * block, _MM_HINT_T0);
        const auto load = [&](int offset) {
          return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + offset));
        };
        const __m256i bytes = load(32 * block);
        const __m256i pairs = load(kChunkColumns + 32 * (block % 2));
        const __m256i codes =
            _mm256_and_si256(block < 2 ? pairs : _mm256_srli_epi16(pairs, 4), nibble);
        const __m256i high = _mm256_or_si256(_mm256_and_si256(bytes, sign),
                                             _mm256_shuffle_epi8(exponents[i].high, codes));
        const __m256i low = _mm256_or_si256(_mm256_andnot_si256(sign, bytes),
                                            _mm256_shuffle_epi8(exponents[i].low, codes));
        const __m256i first = _mm256_unpacklo_epi8(low, high);
        const __m256i second = _mm256_unpackhi_epi8(low, high);
        const __m256 weights[4] = {_mm256_castsi256_ps(_mm256_slli_epi32(first, 16)),
                                   _mm256_castsi256_ps(_mm256_and_si256(first, odd)),
                                   _mm256_castsi256_ps(_mm256_slli_epi32(second, 16)),
                                   _mm256_castsi256_ps(_mm256_and_si256(second, odd))};
#pragma GCC unroll 4
        for (int t = 0; t < kCount; ++t) {
          const float* own =
              reinterpret_cast<const float*>(reinterpret_cast<const char*>(x) + t * stride);
#pragma GCC unroll 4
          for (int v = 0; v < 4; ++v) {
            __m256& part = parts[i][t][kCount == 1 ? v % 2 : 0];
            part = _mm256_fmadd_ps(weights[v], _mm256_loadu_ps(own + 8 * v), part);
          }
        }
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int t = 0; t < kCount; ++t) {
      __m256 part = parts[i][t][0];
      if (kCount == 1) part = _mm256_add_ps(part, parts[i][t][kCount == 1 ? 1 : 0]);
      sums[t * kRows + i] = sum_of(part);
    }
  }
}

void multiply(const uint8_t* const (&rows)[kRows], const uint8_t (&bases)[kRows], int64_t chunks,
              const void* packed_, int64_t stride, int tokens, float* sums) {
  const char* packed = static_cast<const char*>(packed_);
  switch (tokens) {
    case 1:
      return multiply_tokens<1>(rows, bases, chunks, packed, stride, sums);
    case 2:
      return multiply_tokens<2>(rows, bases, chunks, packed, stride, sums);
    case 3:
      return multiply_tokens<3>(rows, bases, chunks, packed, stride, sums);
    default:
      return multiply_tokens<kTokens>(rows, bases, chunks, packed, stride, sums);
  }
}

const LinearKernels kFloat32 = {4, kTokens, pack_activations, multiply};

}  // namespace

namespace flashsparse::lossless::avx2 {
const Kernels kKernels = {nullptr, &kFloat32, pack_row, unpack_row};
}
