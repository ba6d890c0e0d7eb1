// SPDX-License-Identifier: Apache-2.0
// Entry by entry: 16 weights in registers, multiplied by the activation of their column for every
// token of a block. Everything is widened to fp32, where the values are exact.
#pragma once
#include <utility>

#include "cpu/nm_panels/kernels.h"
#include "cpu/vectors.h"

namespace {

constexpr int kRows = 16, kParts = kRows / kLanes;
// Accumulators, a weight's 16 rows and an activation have to fit into 32 registers of AVX-512, or
// 16 of the others.
constexpr int kBlockTokens = kLanes == 16 ? 16 : kLanes == 8 ? 5 : 2;

template <Dtype kDtype, int kTokens>
void multiply_block(const void* values, const int32_t* columns, int64_t kept, const float* x,
                    float* sums) {
  // Sums in flight, so that an addition rarely waits for the one before.
  constexpr int kUnroll = kTokens * kParts <= 2 ? 4 : kTokens * kParts <= 6 ? 2 : 1;
  Floats sum[kUnroll][kTokens][kParts] = {};
  int64_t j = 0;
  for (; j + kUnroll <= kept; j += kUnroll) {
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) {
      const float* activations = x + static_cast<int64_t>(columns[j + u]) * kTokens;
      Floats w[kParts];
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) widen(values, (j + u) * kRows + p * kLanes, kDtype, w[p]);
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
        for (int p = 0; p < kParts; ++p) sum[u][t][p] += w[p] * activations[t];
      }
    }
  }
  for (; j < kept; ++j) {
    const float* activations = x + static_cast<int64_t>(columns[j]) * kTokens;
    for (int p = 0; p < kParts; ++p) {
      Floats w;
      widen(values, j * kRows + p * kLanes, kDtype, w);
      for (int t = 0; t < kTokens; ++t) sum[0][t][p] += w * activations[t];
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int p = 0; p < kParts; ++p) {
      Floats total = sum[0][t][p];
      for (int u = 1; u < kUnroll; ++u) total += sum[u][t][p];
      store(total, sums + t * kRows + p * kLanes);
    }
  }
}

// One function a block size, in a table by tokens - 1.
using Block = void (*)(const void*, const int32_t*, int64_t, const float*, float*);
template <Dtype kDtype, typename Sizes>
struct Blocks;
template <Dtype kDtype, int... kSize>
struct Blocks<kDtype, std::integer_sequence<int, kSize...>> {
  static constexpr Block kTable[] = {multiply_block<kDtype, kSize + 1>...};
};
template <Dtype kDtype>
Block block_of(int tokens) {
  return Blocks<kDtype, std::make_integer_sequence<int, kBlockTokens>>::kTable[tokens - 1];
}

void multiply(const void* values, Dtype dtype, const int32_t* columns, int64_t kept,
              const float* packed, int tokens, float* sums) {
  const Block block = dtype == Dtype::kFloat32   ? block_of<Dtype::kFloat32>(tokens)
                      : dtype == Dtype::kFloat16 ? block_of<Dtype::kFloat16>(tokens)
                                                 : block_of<Dtype::kBFloat16>(tokens);
  block(values, columns, kept, packed, sums);
}

void pack_activations(const void* x, Dtype dtype, int64_t cols, int tokens, float* packed) {
  for (int t = 0; t < tokens; ++t) {
    const char* row = static_cast<const char*>(x) + t * cols * (dtype == Dtype::kFloat32 ? 4 : 2);
    for (int64_t first = 0; first < cols; first += kLanes) {
      const int64_t count = cols - first < kLanes ? cols - first : kLanes;
      Floats floats;
      if (count == kLanes) {
        widen(row, first, dtype, floats);
      } else {
        char rest[sizeof(Floats)] = {};
        const int64_t bytes = dtype == Dtype::kFloat32 ? 4 : 2;
        __builtin_memcpy(rest, row + first * bytes, count * bytes);
        widen(rest, 0, dtype, floats);
      }
      float lanes[kLanes];
      store(floats, lanes);
      for (int64_t i = 0; i < count; ++i) packed[(first + i) * tokens + t] = lanes[i];
    }
  }
}

constexpr flashsparse::nm_panels::Kernels kTable = {kBlockTokens, pack_activations, multiply};

}  // namespace
