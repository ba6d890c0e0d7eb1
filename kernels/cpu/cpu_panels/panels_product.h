// SPDX-License-Identifier: Apache-2.0
// nm_panels: the activation of an entry is the same for all rows, and is broadcast.
#pragma once
#include "cpu/cpu_panels/block.h"

namespace {

// Accumulators, a weight's 16 rows and an activation have to fit into 32 registers of AVX-512, or
// 16 of the others.
constexpr int kPanelsTokens = kLanes == 16 ? 16 : kLanes == 8 ? 5 : 2;

// How values are stored: load(values, j, odd, part, to) widens lanes of entry j, where `odd` has
// the lowest bit of j; bytes(j) are those of j entries.
template <Dtype kDtype>
struct Native {
  static constexpr ValueType kType = ValueType::kNative;
  static constexpr int64_t bytes(int64_t j) {
    return j * kRows * (kDtype == Dtype::kFloat32 ? 4 : 2);
  }
  static FS_VECTOR_INLINE void load(const void* values, int64_t j, int64_t, int part, Floats& to) {
    widen(values, j * kRows + part * kLanes, kDtype, to);
  }
};
template <ValueType kOf>
struct Codes {
  static constexpr ValueType kType = kOf;
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

template <typename Values>
class SharedColumns {
 public:
  static constexpr ValueType kType = Values::kType;

  SharedColumns(const Panel& panel, const Extent&, const float* x) : panel_(panel), x_(x) {}

  template <int kTokens>
  FS_VECTOR_INLINE void add(int64_t entries, Sums<kTokens>& sum) {
    constexpr int kChains = chains_of(kTokens);
    constexpr int kUnroll = kChains == 1 ? 2 : kChains;
    Sums<kTokens> chains[kChains] = {};
    int64_t j = next_;
    const int64_t end = next_ = j + entries;
    if (j % 2 && j < end) {
      add_entry<kTokens>(j, 1, chains[0]);
      ++j;
    }
    for (; j + kUnroll <= end; j += kUnroll) {
      const char* ahead = static_cast<const char*>(panel_.values) + Values::bytes(j);
      for (int64_t b = 0; b < Values::bytes(kUnroll); b += 64) {
        __builtin_prefetch(ahead + kPrefetchAhead + b);
      }
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) add_entry<kTokens>(j + u, u, chains[u % kChains]);
    }
    for (; j < end; ++j) add_entry<kTokens>(j, j, chains[0]);
    add_chains<kTokens>(chains, sum);
  }

 private:
  template <int kTokens>
  FS_VECTOR_INLINE void add_entry(int64_t j, int64_t odd, Sums<kTokens>& sum) const {
    const float* activations = x_ + static_cast<int64_t>(panel_.columns[j]) * kTokens;
    Floats w[kParts];
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) Values::load(panel_.values, j, odd, p, w[p]);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) sum[t][p] += w[p] * activations[t];
    }
  }

  const Panel& panel_;
  const float* x_;
  int64_t next_ = 0;
};

template <typename Values>
Block panels_block(int tokens) {
  return block_of<SharedColumns<Values>, kPanelsTokens>(tokens);
}

Block panels_block(ValueType type, Dtype dtype, int tokens) {
  return flashsparse::with_type(type, [&](auto constant) {
    constexpr ValueType kType = decltype(constant)::value;
    if constexpr (kType != ValueType::kNative) {
      return panels_block<Codes<kType>>(tokens);
    } else {
      return dtype == Dtype::kFloat32   ? panels_block<Native<Dtype::kFloat32>>(tokens)
             : dtype == Dtype::kFloat16 ? panels_block<Native<Dtype::kFloat16>>(tokens)
                                        : panels_block<Native<Dtype::kBFloat16>>(tokens);
    }
  });
}

void multiply_panels(const Panel& panel, const Extent& extent, const float* x, int tokens,
                     float* sums) {
  panels_block(extent.type, extent.dtype, tokens)(panel, extent, x, sums);
}

}  // namespace
