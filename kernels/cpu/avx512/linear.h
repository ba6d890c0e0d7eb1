// SPDX-License-Identifier: Apache-2.0
// The register-blocked loops, for any arithmetic. An Arithmetic says
//   Operands          one expanded mask word, ready to be multiplied
//   kActivationBytes  packed bytes of one token and column pair
//   widen(pair)       Operands of an expanded mask word
//   load / save       Operands in a decoded tile
//   add(sum, w, x)    sum + w * the activations of one column pair; x + kStride(tokens) * ...
#pragma once
#include <cstring>
#include <utility>

#include "cpu/avx512/vector.h"
#include "cpu/kernels.h"

namespace {

using flashsparse::cpu::Panel;

constexpr int kBlockTokens = 12;  // 2 panels x 12 tokens = 24 sums, and 8 registers for the rest
constexpr int kStepPanels = 2;
constexpr int kPanelRows = 16;

// Independent additions that hide the latency of one (6 cycles).
constexpr int kInFlight = 8;

template <typename Arithmetic, int kPanels, int kTokens>
void fused_block(const Panel* panels, int64_t pairs, const char* x, float* sums) {
  constexpr int kSums = kPanels * kTokens;
  constexpr int kUnroll = kSums >= kInFlight ? 1 : kSums * 4 >= kInFlight ? 4 : 8;
  constexpr int kAhead = 1024;  // bytes; some 50 mask words at 80% zeros
  constexpr int kPairBytes = kTokens * Arithmetic::kActivationBytes;
  Floats sum[kUnroll][kPanels][kTokens];
  const uint32_t* masks[kPanels];
  const uint16_t* values[kPanels];
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
    masks[p] = panels[p].masks;
    values[p] = panels[p].values;
#pragma GCC unroll 8
    for (int u = 0; u < kUnroll; ++u) {
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) sum[u][p][t] = _mm512_setzero_ps();
    }
  }
  int64_t k = 0;
  for (; k + kUnroll <= pairs; k += kUnroll) {
#pragma GCC unroll 8
    for (int u = 0; u < kUnroll; ++u) {
      typename Arithmetic::Operands w[kPanels];
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        const uint32_t mask = masks[p][k + u];
        w[p] = Arithmetic::widen(expand(mask, values[p]));
        values[p] += __builtin_popcount(mask);
        if (u == 0) {
          prefetch(values[p], kAhead);
          prefetch(masks[p] + k, kAhead);
        }
      }
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) {
          sum[u][p][t] = Arithmetic::template add<kTokens>(sum[u][p][t], w[p], x, t);
        }
      }
      x += kPairBytes;
    }
  }
  for (; k < pairs; ++k, x += kPairBytes) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      const uint32_t mask = masks[p][k];
      const auto w = Arithmetic::widen(expand(mask, values[p]));
      values[p] += __builtin_popcount(mask);
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
        sum[0][p][t] = Arithmetic::template add<kTokens>(sum[0][p][t], w, x, t);
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      Floats total = sum[0][p][t];
#pragma GCC unroll 8
      for (int u = 1; u < kUnroll; ++u) total = _mm512_add_ps(total, sum[u][p][t]);
      _mm512_store_ps(sums + (p * kTokens + t) * kPanelRows, total);
    }
  }
}

template <typename Arithmetic>
const uint16_t* decode(const Panel& panel, int64_t pairs, void* tile) {
  const uint16_t* values = panel.values;
  char* out = static_cast<char*>(tile);
  for (int64_t k = 0; k < pairs; ++k, out += Arithmetic::kTilePairBytes) {
    const uint32_t mask = panel.masks[k];
    Arithmetic::save(Arithmetic::widen(expand(mask, values)), out);
    values += __builtin_popcount(mask);
    prefetch(values, 512);
  }
  return values;
}

template <typename Arithmetic, int kPanels, int kTokens>
void multiply_block(const char* tiles, int64_t pairs, const char* x, float* sums) {
  constexpr int64_t kTileBytes = Arithmetic::kTilePairs * Arithmetic::kTilePairBytes;
  Floats sum[kPanels][kTokens];
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      sum[p][t] = _mm512_load_ps(sums + (p * kTokens + t) * kPanelRows);
    }
  }
  for (int64_t k = 0; k < pairs; ++k) {
    typename Arithmetic::Operands w[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) w[p] = Arithmetic::load(tiles + p * kTileBytes);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        sum[p][t] = Arithmetic::template add<kTokens>(sum[p][t], w[p], x, t);
      }
    }
    tiles += Arithmetic::kTilePairBytes;
    x += kTokens * Arithmetic::kActivationBytes;
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      _mm512_store_ps(sums + (p * kTokens + t) * kPanelRows, sum[p][t]);
    }
  }
}

// One function a block size, in tables [panels - 1][tokens - 1].
using FusedBlock = void (*)(const Panel*, int64_t, const char*, float*);
using MultiplyBlock = void (*)(const char*, int64_t, const char*, float*);

template <typename Arithmetic, int... kIndex>
void fused_of(const Panel* panels, int count, int64_t pairs, const char* x, int tokens, float* sums,
              std::integer_sequence<int, kIndex...>) {
  static constexpr FusedBlock kBlocks[kStepPanels][sizeof...(kIndex)] = {
      {fused_block<Arithmetic, 1, kIndex + 1>...}, {fused_block<Arithmetic, 2, kIndex + 1>...}};
  kBlocks[count - 1][tokens - 1](panels, pairs, x, sums);
}

template <typename Arithmetic>
void fused(const Panel* panels, int count, int64_t pairs, const void* packed, int tokens,
           float* sums) {
  fused_of<Arithmetic>(panels, count, pairs, static_cast<const char*>(packed), tokens, sums,
                       std::make_integer_sequence<int, kBlockTokens>());
}

template <typename Arithmetic, int... kIndex>
void multiply_of(const char* tiles, int count, int64_t pairs, const char* x, int tokens,
                 float* sums, std::integer_sequence<int, kIndex...>) {
  static constexpr MultiplyBlock kBlocks[kStepPanels][sizeof...(kIndex)] = {
      {multiply_block<Arithmetic, 1, kIndex + 1>...},
      {multiply_block<Arithmetic, 2, kIndex + 1>...}};
  kBlocks[count - 1][tokens - 1](tiles, pairs, x, sums);
}

template <typename Arithmetic>
void multiply(const void* tiles, int count, int64_t pairs, const void* packed, int tokens,
              float* sums) {
  multiply_of<Arithmetic>(static_cast<const char*>(tiles), count, pairs,
                          static_cast<const char*>(packed), tokens, sums,
                          std::make_integer_sequence<int, kBlockTokens>());
}

template <typename Arithmetic>
constexpr flashsparse::cpu::LinearKernels linear_kernels(decltype(
    flashsparse::cpu::LinearKernels::pack_activations) pack_activations) {
  return {Arithmetic::kActivationBytes, kBlockTokens,          kBlockTokens,
          kStepPanels,                  Arithmetic::kTilePairs, Arithmetic::kTilePairBytes,
          pack_activations,             fused<Arithmetic>,     decode<Arithmetic>,
          multiply<Arithmetic>};
}

}  // namespace
