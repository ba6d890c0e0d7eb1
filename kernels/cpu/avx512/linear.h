// SPDX-License-Identifier: Apache-2.0
// The register-blocked loop, for any arithmetic. An Arithmetic defines
//   Value             a stored value
//   Operands          an expanded mask word, ready to be multiplied
//   kActivationBytes  packed bytes of one token and column pair
//   decode(mask, values)  Operands of a mask word from the values that follow
//   add<tokens>(sum, w, x, token)  sum + w * that token's activations of one column pair, at x
#pragma once
#include <utility>

#include "cpu/avx512/vector.h"
#include "cpu/kernels.h"

namespace {

using flashsparse::cpu::Panel;

constexpr int kBlockTokens = 24;  // accumulators in registers; 8 are left for the rest
constexpr int kPanelRows = 16;

// One panel at a time: its values and the next panel's are contiguous, so prefetches keep up with
// them. Two panels at once would halve the loads of activations, but be two streams that break off
// every few KB, and measured slower. Decoding a tile once for all tokens does not pay either: from
// 24 tokens on, expanding a mask word again hides behind the arithmetic.
constexpr intptr_t kPrefetchAhead = 4096;  // bytes; far enough to hide the latency of DRAM

template <typename Arithmetic, int kTokens>
void multiply_block(const Panel& panel, int64_t pairs, const char* x, float* sums) {
  // Independent accumulators, so that an addition rarely waits for the previous one (6 cycles).
  constexpr int kUnroll = kTokens <= 2 ? 4 : kTokens <= 12 ? 2 : 1;
  constexpr int kPairBytes = kTokens * Arithmetic::kActivationBytes;
  Floats sum[kUnroll][kTokens];
#pragma GCC unroll 4
  for (int u = 0; u < kUnroll; ++u) {
#pragma GCC unroll 32
    for (int t = 0; t < kTokens; ++t) sum[u][t] = _mm512_setzero_ps();
  }
  auto values = static_cast<const typename Arithmetic::Value*>(panel.values);
  int64_t k = 0;
  for (; k + kUnroll <= pairs; k += kUnroll) {
    if (k % 16 == 0) prefetch(panel.masks + k, kPrefetchAhead);
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u, x += kPairBytes) {
      const uint32_t mask = panel.masks[k + u];
      const auto w = Arithmetic::decode(mask, values);
      values += __builtin_popcount(mask);
      prefetch(values, kPrefetchAhead);
#pragma GCC unroll 32
      for (int t = 0; t < kTokens; ++t) {
        sum[u][t] = Arithmetic::template add<kTokens>(sum[u][t], w, x, t);
      }
    }
  }
  for (; k < pairs; ++k, x += kPairBytes) {
    const uint32_t mask = panel.masks[k];
    const auto w = Arithmetic::decode(mask, values);
    values += __builtin_popcount(mask);
#pragma GCC unroll 32
    for (int t = 0; t < kTokens; ++t) {
      sum[0][t] = Arithmetic::template add<kTokens>(sum[0][t], w, x, t);
    }
  }
#pragma GCC unroll 32
  for (int t = 0; t < kTokens; ++t) {
    Floats total = sum[0][t];
#pragma GCC unroll 4
    for (int u = 1; u < kUnroll; ++u) total = _mm512_add_ps(total, sum[u][t]);
    _mm512_store_ps(sums + t * kPanelRows, total);
  }
}

// One function for each block size, in a table indexed by tokens - 1.
using Block = void (*)(const Panel&, int64_t, const char*, float*);

template <typename Arithmetic, typename Sizes>
struct Blocks;
template <typename Arithmetic, int... kSize>
struct Blocks<Arithmetic, std::integer_sequence<int, kSize...>> {
  static constexpr Block kTable[] = {multiply_block<Arithmetic, kSize + 1>...};
};

template <typename Arithmetic>
void multiply(const Panel& panel, int64_t pairs, const void* packed, int tokens, float* sums) {
  using Sizes = std::make_integer_sequence<int, kBlockTokens>;
  Blocks<Arithmetic, Sizes>::kTable[tokens - 1](panel, pairs, static_cast<const char*>(packed),
                                                sums);
}

template <typename Arithmetic>
constexpr flashsparse::cpu::LinearKernels linear_kernels(
    decltype(flashsparse::cpu::LinearKernels::pack_activations) pack_activations) {
  return {Arithmetic::kActivationBytes, kBlockTokens, pack_activations, multiply<Arithmetic>};
}

}  // namespace
