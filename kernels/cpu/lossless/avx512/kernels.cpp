// SPDX-License-Identifier: Apache-2.0
#include "cpu/lossless/kernels.h"

#include <immintrin.h>

#include "cpu/lossless/order.h"
#include "cpu/lossless/rows.h"

namespace {

using namespace flashsparse::lossless;

constexpr int kTokens = 8;
constexpr int kAhead = 6144;  // bytes that are prefetched in front of what is read

using Bits = __m512i;

// The two bytes of bf16 for each code of a row, but for sign and fraction.
struct Exponents {
  Bits high, low;
};
inline Exponents exponents_of(uint8_t base) {
  const __m128i counted = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const Bits codes = _mm512_maskz_broadcast_i32x4(0xffff, counted);
  const Bits exponents = _mm512_maskz_add_epi8(_mm512_test_epi8_mask(codes, codes), codes,
                                               _mm512_set1_epi8(static_cast<char>(base)));
  return {
      _mm512_and_si512(_mm512_srli_epi16(exponents, 1), _mm512_set1_epi8(0x7f)),
      _mm512_and_si512(_mm512_slli_epi16(exponents, 7), _mm512_set1_epi8(static_cast<char>(0x80)))};
}

inline float sum_of(__m512 parts) {
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, parts);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[half + i];
  }
  return lanes[0];
}

// Products of fp32: a register of bf16 becomes one of its even and one of its odd columns.
struct Float32 {
  using Activation = float;
  static constexpr Order<64, true> kOrder{};
  static constexpr int kRegisters = 2;  // of activations for one of bf16
  static void pack(const void* x, Dtype dtype, int64_t columns, void* packed) {
    pack_in_order(kOrder, x, dtype, columns, static_cast<float*>(packed));
  }
  struct Weights {
    __m512 even, odd;
    explicit Weights(Bits bits)
        : even(_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))),
          odd(_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-0x10000)))) {}
  };
  static __m512 add(__m512 sum, const Weights& weights, const float* x) {
    sum = _mm512_fmadd_ps(weights.even, _mm512_loadu_ps(x), sum);
    return _mm512_fmadd_ps(weights.odd, _mm512_loadu_ps(x + 16), sum);
  }
};

// Products of pairs of bf16.
struct Bfloat16Dot {
  using Activation = uint16_t;
  static constexpr Order<64, false> kOrder{};
  static void pack(const void* x_, Dtype, int64_t columns, void* packed_) {
    const uint16_t* x = static_cast<const uint16_t*>(x_);
    uint16_t* packed = static_cast<uint16_t*>(packed_);
    for (int64_t first = 0; first < columns; first += kChunkColumns, packed += kChunkColumns) {
      for (int j = 0; j < kChunkColumns; ++j) {
        const int64_t col = first + kOrder.column[j];
        packed[j] = col < columns ? x[col] : uint16_t{0};
      }
    }
  }
  struct Weights {
    Bits bits;
    explicit Weights(Bits bits) : bits(bits) {}
  };
  static __m512 add(__m512 sum, const Weights& weights, const uint16_t* x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)weights.bits, (__m512bh)_mm512_loadu_si512(x));
  }
};

template <typename Arithmetic, int kCount>
void multiply_tokens(const uint8_t* const (&rows)[kRows], const uint8_t (&bases)[kRows],
                     int64_t chunks, const char* packed, int64_t stride, float* sums) {
  using Activation = typename Arithmetic::Activation;
  using Weights = typename Arithmetic::Weights;
  const Bits fraction = _mm512_set1_epi8(0x7f), nibble = _mm512_set1_epi8(0xf);
  Exponents exponents[kRows];
  for (int i = 0; i < kRows; ++i) exponents[i] = exponents_of(bases[i]);
  constexpr int kChains = kCount == 1 ? 2 : 1;  // of one token and row
  __m512 parts[kRows][kCount][kChains] = {};
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
#pragma GCC unroll 2
    for (int i = 0; i < kRows; ++i) {
      const uint8_t* from = rows[i] + chunk * kChunkBytes;
      for (int line = 0; line < kChunkBytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead + line, _MM_HINT_T0);
      }
      const Bits pairs = _mm512_loadu_si512(from + kChunkColumns);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {  // 64 columns
        const Bits bytes = _mm512_loadu_si512(from + 64 * half);
        const Bits codes = _mm512_and_si512(half ? _mm512_srli_epi16(pairs, 4) : pairs, nibble);
        // Where the mask has a bit: that of the second, else that of the third.
        const Bits low = _mm512_ternarylogic_epi32(
            fraction, bytes, _mm512_shuffle_epi8(exponents[i].low, codes), 0xca);
        const Bits high = _mm512_ternarylogic_epi32(
            fraction, _mm512_shuffle_epi8(exponents[i].high, codes), bytes, 0xca);
        const Weights first(_mm512_unpacklo_epi8(low, high));
        const Weights second(_mm512_unpackhi_epi8(low, high));
#pragma GCC unroll 8
        for (int t = 0; t < kCount; ++t) {
          const Activation* x = reinterpret_cast<const Activation*>(packed + t * stride) +
                                chunk * kChunkColumns + 64 * half;
          __m512(&part)[kChains] = parts[i][t];
          part[0] = Arithmetic::add(part[0], first, x);
          part[kChains - 1] = Arithmetic::add(part[kChains - 1], second, x + 32);
        }
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int t = 0; t < kCount; ++t) {
      __m512 part = parts[i][t][0];
      if (kChains == 2) part = _mm512_add_ps(part, parts[i][t][kChains - 1]);
      sums[t * kRows + i] = sum_of(part);
    }
  }
}

template <typename Arithmetic>
void multiply(const uint8_t* const (&rows)[kRows], const uint8_t (&bases)[kRows], int64_t chunks,
              const void* packed_, int64_t stride, int tokens, float* sums) {
  const char* packed = static_cast<const char*>(packed_);
  switch (tokens) {
#define FS_CASE(count) \
  case count:          \
    return multiply_tokens<Arithmetic, count>(rows, bases, chunks, packed, stride, sums);
    FS_CASE(1)
    FS_CASE(2)
    FS_CASE(3)
    FS_CASE(4)
    FS_CASE(5)
    FS_CASE(6)
    FS_CASE(7)
    default:
      return multiply_tokens<Arithmetic, kTokens>(rows, bases, chunks, packed, stride, sums);
#undef FS_CASE
  }
}

const LinearKernels kBfloat16Dot = {2, kTokens, Bfloat16Dot::pack, multiply<Bfloat16Dot>};
const LinearKernels kFloat32 = {4, kTokens, Float32::pack, multiply<Float32>};

}  // namespace

namespace flashsparse::lossless::avx512 {
const Kernels kKernels = {&kBfloat16Dot, &kFloat32, pack_row, unpack_row};
}
