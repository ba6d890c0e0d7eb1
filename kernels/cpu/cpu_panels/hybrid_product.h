// SPDX-License-Identifier: Apache-2.0
// hybrid_panels: of a 2:4 unit each row's position picks its activation, of a dense one an
// activation is broadcast to all rows.
#pragma once
#include "cpu/cpu_panels/rows_product.h"
#include "formats/cpu_panels.h"

namespace {

template <ValueType kOf>
class TwoKinds {
 public:
  static constexpr ValueType kType = kOf;

  TwoKinds(const Panel& panel, const Extent&, const float* x)
      : values_(static_cast<const uint8_t*>(panel.values)),
        words_(panel.positions),
        kinds_(panel.kinds),
        x_(x) {}

  template <int kTokens>
  FS_VECTOR_INLINE void add(int64_t windows, Sums<kTokens>& sum) {
    constexpr int kChains = chains_of(kTokens);
    Sums<kTokens> chains[kChains] = {};
    while (windows > 0) {
      const int64_t left = kUnitWindows - window_ % kUnitWindows;
      const int64_t count = left < windows ? left : windows;
      if (kinds_[window_ / kUnitWindows]) {
        for (int64_t w = 0; w < count; ++w) add_dense<kTokens>(chains);
      } else {
        // Only the last unit of a row may end inside a word, and a group of columns ends with one.
        for (int64_t w = 0; w < count; ++w) add_pair<kTokens>(w, chains);
      }
      window_ += count;
      windows -= count;
    }
    add_chains<kTokens>(chains, sum);
  }

 private:
  static constexpr int64_t kUnitWindows = flashsparse::cpu_panels::kUnitWindows;
  static constexpr int kWordWindows = 8;
  static constexpr int kInByte = flashsparse::codes_in_byte(kType);

  template <int kTokens, int kChains>
  FS_VECTOR_INLINE void add_dense(Sums<kTokens> (&chains)[kChains]) {
    __builtin_prefetch(values_ + kPrefetchAhead);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      Floats w[kParts];
      load(i, w);
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
        for (int p = 0; p < kParts; ++p) chains[i % kChains][t][p] += w[p] * x_[t * 4 + i];
      }
    }
    values_ += 4 / kInByte * kRows;
    x_ += kTokens * 4;
  }

  // `number`: of the window, since positions began at a word.
  template <int kTokens, int kChains>
  FS_VECTOR_INLINE void add_pair(int64_t number, Sums<kTokens> (&chains)[kChains]) {
    if (number % kWordWindows == 0) {
      __builtin_memcpy(word_, words_, sizeof word_);
      words_ += kRows;
      __builtin_prefetch(words_ + kPrefetchAhead / 4);
    }
    if (number % 2 == 0) __builtin_prefetch(values_ + kPrefetchAhead);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      Floats w[kParts];
      load(i, w);
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
        for (int p = 0; p < kParts; ++p) {
          Floats activations;
          pick<4>(x_ + t * 4, word_[p], activations);
          chains[i % kChains][t][p] += w[p] * activations;
        }
      }
      for (int p = 0; p < kParts; ++p) word_[p] >>= 2;
    }
    values_ += 2 / kInByte * kRows;
    x_ += kTokens * 4;
  }

  // Entry i of the window.
  FS_VECTOR_INLINE void load(int i, Floats (&w)[kParts]) const {
    const uint8_t* step = values_ + i / kInByte * kRows;
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) widen_code<kType>(step + p * kLanes, i, w[p]);
  }

  const uint8_t* values_;
  const uint32_t* words_;
  const uint8_t* kinds_;
  const float* x_;
  int64_t window_ = 0;
  Words word_[kParts];
};

void multiply_hybrid(const Panel& panel, const Extent& extent, const float* x, int tokens,
                     float* sums) {
  const Block block = flashsparse::with_type(extent.type, [&](auto constant) -> Block {
    constexpr ValueType kType = decltype(constant)::value;
    if constexpr (kType == ValueType::kNative)
      return nullptr;  // native values run as a bitmap
    else
      return block_of<TwoKinds<kType>, kRowsTokens>(tokens);
  });
  block(panel, extent, x, sums);
}

}  // namespace
