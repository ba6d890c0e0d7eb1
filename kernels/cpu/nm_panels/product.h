// SPDX-License-Identifier: Apache-2.0
// Entry by entry: 16 weights in registers, multiplied by the activation of their column for every
// token of a block. Everything is widened to fp32, where it is exact; the sums of a group of codes
// are multiplied by its scales. The folder that includes this brings what cpu/codes.h asks for.
#pragma once
#include <utility>

#include "cpu/codes.h"
#include "cpu/nm_panels/kernels.h"

namespace {

using flashsparse::nm_panels::Panel;

constexpr int kRows = 16, kParts = kRows / kLanes;
// Accumulators, a weight's 16 rows and an activation have to fit into 32 registers of AVX-512, or
// 16 of the others.
constexpr int kBlockTokens = kLanes == 16 ? 16 : kLanes == 8 ? 5 : 2;
constexpr int64_t kPrefetchAhead = 4096;  // bytes; far enough to hide the latency of DRAM

template <int kTokens>
using Sums = Floats[kTokens][kParts];

// How values are stored: load(values, j, odd, part, to) widens lanes of entry j, bytes(j) are those
// of j entries.
template <Dtype kDtype>
struct Native {
  static constexpr bool kScaled = false;
  static constexpr int64_t bytes(int64_t j) {
    return j * kRows * (kDtype == Dtype::kFloat32 ? 4 : 2);
  }
  static FS_VECTOR_INLINE void load(const void* values, int64_t j, int64_t, int part, Floats& to) {
    widen(values, j * kRows + part * kLanes, kDtype, to);
  }
};
template <ValueType kType>
struct Codes {
  static constexpr bool kScaled = true;
  static constexpr float kUnit = ::kUnit<kType>;
  static constexpr int64_t bytes(int64_t j) {
    constexpr int kInByte = flashsparse::codes_in_byte(kType);
    return j / kInByte * kRows;
  }
  static FS_VECTOR_INLINE void load(const void* values, int64_t j, int64_t odd, int part,
                                    Floats& to) {
    const auto step = static_cast<const uint8_t*>(values) + bytes(j);
    widen_code<kType>(step + part * kLanes, odd, to);
  }
};

// Adds entry j; `odd` has the lowest bit of j, a constant where the caller knows it.
template <typename Values, int kTokens>
FS_VECTOR_INLINE void add(const Panel& panel, int64_t j, int64_t odd, const float* x,
                          Sums<kTokens>& sum) {
  const float* activations = x + static_cast<int64_t>(panel.columns[j]) * kTokens;
  Floats w[kParts];
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) Values::load(panel.values, j, odd, p, w[p]);
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) sum[t][p] += w[p] * activations[t];
  }
}

// Adds entries [j, end).
template <typename Values, int kTokens>
FS_VECTOR_INLINE void add_entries(const Panel& panel, int64_t j, int64_t end, const float* x,
                                  Sums<kTokens>& sum) {
  // Sums in flight, so that an addition rarely waits for the one before.
  constexpr int kChains = kTokens * kParts <= 2 ? 4 : kTokens * kParts <= 6 ? 2 : 1;
  constexpr int kUnroll = kChains == 1 ? 2 : kChains;
  Sums<kTokens> chains[kChains] = {};
  if (j % 2 && j < end) {
    add<Values, kTokens>(panel, j, 1, x, chains[0]);
    ++j;
  }
  for (; j + kUnroll <= end; j += kUnroll) {
    const char* ahead = static_cast<const char*>(panel.values) + Values::bytes(j) + kPrefetchAhead;
    for (int64_t b = 0; b < Values::bytes(kUnroll); b += 64) __builtin_prefetch(ahead + b);
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) add<Values, kTokens>(panel, j + u, u, x, chains[u % kChains]);
  }
  for (; j < end; ++j) add<Values, kTokens>(panel, j, j, x, chains[0]);
  for (int t = 0; t < kTokens; ++t) {
    for (int p = 0; p < kParts; ++p) {
      sum[t][p] = chains[0][t][p];
      for (int c = 1; c < kChains; ++c) sum[t][p] += chains[c][t][p];
    }
  }
}

template <typename Values, int kTokens>
void multiply_block(const Panel& panel, const float* x, float* sums) {
  Sums<kTokens> sum, total = {};
  for (int64_t first = 0, group = 0; first < panel.kept; first += panel.group_entries, ++group) {
    const int64_t left = panel.kept - first;
    const int64_t entries = left < panel.group_entries ? left : panel.group_entries;
    add_entries<Values, kTokens>(panel, first, first + entries, x, sum);
    for (int p = 0; p < kParts; ++p) {
      if constexpr (Values::kScaled) {
        Floats scale;
        widen(panel.scales, group * kRows + p * kLanes, panel.scale_dtype, scale);
        for (int t = 0; t < kTokens; ++t) total[t][p] += scale * (Values::kUnit * sum[t][p]);
      } else {
        for (int t = 0; t < kTokens; ++t) total[t][p] = sum[t][p];
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int p = 0; p < kParts; ++p) store(total[t][p], sums + t * kRows + p * kLanes);
  }
}

// One function a block size, in a table by tokens - 1.
using Block = void (*)(const Panel&, const float*, float*);
template <typename Values, typename Sizes>
struct Blocks;
template <typename Values, int... kSize>
struct Blocks<Values, std::integer_sequence<int, kSize...>> {
  static constexpr Block kTable[] = {multiply_block<Values, kSize + 1>...};
};
template <typename Values>
Block block_of(int tokens) {
  return Blocks<Values, std::make_integer_sequence<int, kBlockTokens>>::kTable[tokens - 1];
}

Block block_of(ValueType type, Dtype dtype, int tokens) {
  switch (type) {
    case ValueType::kInt8:
      return block_of<Codes<ValueType::kInt8>>(tokens);
    case ValueType::kInt4:
      return block_of<Codes<ValueType::kInt4>>(tokens);
    case ValueType::kFp8:
      return block_of<Codes<ValueType::kFp8>>(tokens);
    default:
      return dtype == Dtype::kFloat32   ? block_of<Native<Dtype::kFloat32>>(tokens)
             : dtype == Dtype::kFloat16 ? block_of<Native<Dtype::kFloat16>>(tokens)
                                        : block_of<Native<Dtype::kBFloat16>>(tokens);
  }
}

void multiply(const Panel& panel, ValueType type, Dtype dtype, const float* x, int tokens,
              float* sums) {
  block_of(type, dtype, tokens)(panel, x, sums);
}

constexpr flashsparse::nm_panels::Kernels kTable = {kBlockTokens, widen_all, multiply};

}  // namespace
