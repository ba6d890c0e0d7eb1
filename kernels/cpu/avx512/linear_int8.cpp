// SPDX-License-Identifier: Apache-2.0
// int8 weights by bf16 activations: weights are converted to bf16, which is exact, by tables, and
// vdpbf16ps multiplies as for bf16 weights. Two mask words make one mask of 64 bits:
//
//   expand (vpexpandb)   values of column pair k in the lower half, of k + 1 in the upper
//   |value|              index of an entry in two tables (vpermi2b): the upper and the lower byte
//                        of the bf16; 128 has entry 0, since no stored value is 0
//   | sign               of the value
//   vpunpck              bytes to bf16 pairs: rows 0-3 and 8-11 of both column pairs, and the rest
//   vdpbf16ps            by the activations of k in the lower half, and of k + 1 in the upper
#include <utility>

#include "cpu/avx512/parts.h"
#include "cpu/avx512/vector.h"

namespace {

using flashsparse::cpu::LinearKernels;
using flashsparse::cpu::Panel;

constexpr int kBlockTokens = 12;     // two accumulators each; 8 registers are left for the rest
constexpr int kActivationBytes = 4;  // a pair of bf16
constexpr intptr_t kPrefetchAhead = 4096;  // bytes; far enough to hide the latency of DRAM

// Bytes of |value| as bf16.
struct Magnitudes {
  alignas(64) uint8_t upper[128], lower[128];
};
constexpr Magnitudes make_magnitudes() {
  Magnitudes table{};
  for (int code = 1; code <= 128; ++code) {
    int exponent = 7;
    while (code >> exponent == 0) --exponent;
    const int mantissa = (code << 7 >> exponent) & 127, bits = (exponent + 127) << 7 | mantissa;
    table.upper[code % 128] = static_cast<uint8_t>(bits >> 8);
    table.lower[code % 128] = static_cast<uint8_t>(bits & 255);
  }
  return table;
}
constexpr Magnitudes kMagnitudes = make_magnitudes();

// 16 rows of two column pairs as bf16 pairs: lanes 0 and 1 of `first` are rows 0-3 and 8-11 of the
// one, lanes 2 and 3 of the other; `second` has rows 4-7 and 12-15.
struct TwoPairs {
  Bits first, second;
};

class Decoder {
 public:
  FS_INLINE TwoPairs operator()(uint64_t mask, const int8_t* codes) const {
    const Bits zero = fresh_zero(static_cast<uint32_t>(mask));
    const Bits code = _mm512_mask_expand_epi8(zero, mask, _mm512_loadu_si512(codes));
    const Bits entry = _mm512_abs_epi8(code);
    const Bits magnitude = _mm512_maskz_permutex2var_epi8(mask, upper_[0], entry, upper_[1]);
    const Bits lower = _mm512_maskz_permutex2var_epi8(mask, lower_[0], entry, lower_[1]);
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    const Bits sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const Bits upper = _mm512_ternarylogic_epi32(magnitude, code, sign, kOrAnd);
    return {_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)};
  }

 private:
  Bits upper_[2] = {_mm512_load_si512(kMagnitudes.upper),
                    _mm512_load_si512(kMagnitudes.upper + 64)};
  Bits lower_[2] = {_mm512_load_si512(kMagnitudes.lower),
                    _mm512_load_si512(kMagnitudes.lower + 64)};
};

FS_INLINE Floats dot(Floats sum, Bits w, Bits x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}

// Accumulators of a TwoPairs, with rows in order.
FS_INLINE Floats in_row_order(Floats first, Floats second) {
  const auto halves = [](Floats sum) {
    return _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
  };
  const Floats both = _mm512_insertf32x8(_mm512_castps256_ps512(halves(first)), halves(second), 1);
  return _mm512_shuffle_f32x4(both, both, 0xd8);
}

template <int kTokens>
void multiply_block(const Panel& panel, int64_t pairs, const char* x, float* sums) {
  // Independent accumulators, so that an addition rarely waits for the previous one.
  constexpr int kUnroll = kTokens <= 2 ? 2 : 1;
  constexpr int kPairBytes = kTokens * kActivationBytes;
  Floats first[kUnroll][kTokens], second[kUnroll][kTokens];
#pragma GCC unroll 2
  for (int u = 0; u < kUnroll; ++u) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) first[u][t] = second[u][t] = _mm512_setzero_ps();
  }
  const Decoder decode;
  auto codes = static_cast<const int8_t*>(panel.values);
  int64_t k = 0;
  const auto step = [&](int u, uint64_t mask, int columns) __attribute__((always_inline)) {
    const TwoPairs w = decode(mask, codes);
    codes += __builtin_popcountll(mask);
    prefetch(codes, kPrefetchAhead);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      Bits activations = _mm512_set1_epi32(static_cast<int>(load_u32(x + 4 * t)));
      if (columns == 2) {
        const int upper = static_cast<int>(load_u32(x + kPairBytes + 4 * t));
        activations = _mm512_mask_set1_epi32(activations, 0xff00, upper);
      }
      first[u][t] = dot(first[u][t], w.first, activations);
      second[u][t] = dot(second[u][t], w.second, activations);
    }
    x += columns * kPairBytes;
  };
  for (; k + 2 * kUnroll <= pairs; k += 2 * kUnroll) {
    if (k % 16 == 0) prefetch(panel.masks + k, kPrefetchAhead);
#pragma GCC unroll 2
    for (int u = 0; u < kUnroll; ++u) step(u, load_u64(panel.masks + k + 2 * u), 2);
  }
  for (; k + 2 <= pairs; k += 2) step(0, load_u64(panel.masks + k), 2);
  if (k < pairs) step(0, panel.masks[k], 1);
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
    Floats low = first[0][t], high = second[0][t];
    if (kUnroll == 2) {
      low = _mm512_add_ps(low, first[kUnroll - 1][t]);
      high = _mm512_add_ps(high, second[kUnroll - 1][t]);
    }
    _mm512_store_ps(sums + t * 16, in_row_order(low, high));
  }
}

// One function for each block size, in a table indexed by tokens - 1.
using Block = void (*)(const Panel&, int64_t, const char*, float*);

template <typename Sizes>
struct Blocks;
template <int... kSize>
struct Blocks<std::integer_sequence<int, kSize...>> {
  static constexpr Block kTable[] = {multiply_block<kSize + 1>...};
};

void multiply(const Panel& panel, int64_t pairs, const void* packed, int tokens, float* sums) {
  using Sizes = std::make_integer_sequence<int, kBlockTokens>;
  Blocks<Sizes>::kTable[tokens - 1](panel, pairs, static_cast<const char*>(packed), sums);
}

}  // namespace

namespace flashsparse::cpu::avx512 {
const LinearKernels kInt8BFloat16 = {kActivationBytes, kBlockTokens, pack_bfloat16_activations,
                                     multiply};
}
