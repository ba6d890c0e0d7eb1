// SPDX-License-Identifier: Apache-2.0
// nm_rows: each row's position picks its activation from those of the window.
#pragma once
#include "cpu/cpu_panels/block.h"

namespace {

// A block's sums, those of the group and those of all groups, are in registers.
constexpr int kRowsTokens = kLanes == 16 ? 8 : kLanes == 8 ? 3 : 2;

// kWidth: of the registers that windows are picked from. kN: entries of a window, or 0 for any
// number; even, as are those of a group then.
template <ValueType kOf, int kWidth, int kN>
class OwnColumns {
 public:
  static constexpr ValueType kType = kOf;

  OwnColumns(const Panel& panel, const Extent& extent, const float* x)
      : values_(static_cast<const uint8_t*>(panel.values)),
        words_(panel.positions),
        x_(x),
        n_(extent.n),
        m_(extent.m) {}

  // Where n is known the windows are taken two at a time, with chains of sums.
  template <int kTokens>
  FS_VECTOR_INLINE void add(int64_t windows, Sums<kTokens>& sum) {
    const float* x = x_;
    Floats w[kParts];
    Words positions[kParts];
    if constexpr (kN == 0) {
      for (int t = 0; t < kTokens; ++t) {
        for (int p = 0; p < kParts; ++p) sum[t][p] = Floats{};
      }
      for (int64_t window = 0; window < windows; ++window, x += kTokens * m_) {
        for (int64_t i = 0; i < n_; ++i) {
          next(entry_, w, positions);
          multiply_add<kTokens>(w, positions, x, sum);
        }
      }
    } else {
      constexpr int kChains = chains_of(kTokens);
      Sums<kTokens> chains[kChains] = {};
      for (int64_t window = 0; window + 2 <= windows; window += 2) {
#pragma GCC unroll 4
        for (int u = 0; u < 2; ++u, x += kTokens * m_) {
#pragma GCC unroll 4
          for (int i = 0; i < kN; ++i) {
            next(i, w, positions);
            multiply_add<kTokens>(w, positions, x, chains[(u * kN + i) % kChains]);
          }
        }
      }
      if (windows % 2) {
        for (int i = 0; i < kN; ++i) {
          next(i, w, positions);
          multiply_add<kTokens>(w, positions, x, chains[0]);
        }
        x += kTokens * m_;
      }
      add_chains<kTokens>(chains, sum);
    }
    x_ = x;
  }

 private:
  static constexpr int kBits = kWidth <= 4 ? 2 : kWidth <= 16 ? 4 : 8;
  static constexpr int kWordEntries = 32 / kBits;

  // Loads the codes and the positions of the next entry. `odd` has the lowest bit of its number, a
  // constant where that is known. A word of positions lasts for several entries, and may end inside
  // a window or a group.
  FS_VECTOR_INLINE void next(int64_t odd, Floats (&w)[kParts], Words (&positions)[kParts]) {
    if (entry_ % kWordEntries == 0) {
      __builtin_memcpy(word_, words_, sizeof word_);
      words_ += kRows;
      __builtin_prefetch(words_ + kPrefetchAhead / 4);
    }
    constexpr int kInByte = flashsparse::codes_in_byte(kType);
    const uint8_t* step = values_ + entry_ / kInByte * kRows;
    if (entry_ % (4 * kInByte) == 0) __builtin_prefetch(step + kPrefetchAhead);
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      widen_code<kType>(step + p * kLanes, odd, w[p]);
      positions[p] = word_[p];
      word_[p] >>= kBits;
    }
    ++entry_;
  }

  template <int kTokens>
  FS_VECTOR_INLINE void multiply_add(const Floats (&w)[kParts], const Words (&positions)[kParts],
                                     const float* x, Sums<kTokens>& sum) const {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        Floats activations;
        pick<kWidth>(x + t * m_, positions[p], activations);
        sum[t][p] += w[p] * activations;
      }
    }
  }

  const uint8_t* values_;
  const uint32_t* words_;
  const float* x_;
  int64_t n_, m_;
  int64_t entry_ = 0;
  Words word_[kParts];
};

template <ValueType kType, int kWidth, int kN>
Block rows_block(int tokens) {
  return block_of<OwnColumns<kType, kWidth, kN>, kRowsTokens>(tokens);
}

template <ValueType kType>
Block rows_block(const Extent& extent, int tokens) {
  if (extent.m <= 4 && extent.n == 2) return rows_block<kType, 4, 2>(tokens);
  if (extent.m <= 4) return rows_block<kType, 4, 0>(tokens);
  if (extent.m <= 16) return rows_block<kType, 16, 0>(tokens);
  return extent.m <= 32 ? rows_block<kType, 32, 0>(tokens) : rows_block<kType, 256, 0>(tokens);
}

void multiply_rows(const Panel& panel, const Extent& extent, const float* x, int tokens,
                   float* sums) {
  const Block block = flashsparse::with_type(extent.type, [&](auto constant) -> Block {
    constexpr ValueType kType = decltype(constant)::value;
    if constexpr (kType == ValueType::kNative)
      return nullptr;  // never in rows of their own
    else
      return rows_block<kType>(extent, tokens);
  });
  block(panel, extent, x, sums);
}

}  // namespace
