// SPDX-License-Identifier: Apache-2.0
// Window by window: for every kept entry, 16 codes in registers, multiplied by the activations that
// their rows' positions pick from the window. Everything is widened to fp32, where it is exact; the
// sums of a group are multiplied by its scales.
//
// The folder that includes this brings, beside what cpu/codes.h asks for,
//   pick<width>(window, positions, to)  to[lane] = window[positions[lane] mod width]
// and may read window[0 .. width).
#pragma once
#include <utility>

#include "cpu/codes.h"
#include "cpu/nm_rows/kernels.h"

namespace {

using flashsparse::nm_rows::Extent;
using flashsparse::nm_rows::Panel;

constexpr int kRows = 16, kParts = kRows / kLanes;
// A block's sums, those of the group and those of all groups, are in registers.
constexpr int kBlockTokens = kLanes == 16 ? 8 : kLanes == 8 ? 3 : 2;
constexpr int64_t kPrefetchAhead = 4096;  // bytes; far enough to hide the latency of DRAM

template <int kTokens>
using Sums = Floats[kTokens][kParts];

// Where the kernel is in a panel. A word of positions lasts for several entries, and may end inside
// a window or a group.
template <ValueType kType, int kWidth>
class Cursor {
 public:
  explicit Cursor(const Panel& panel) : values_(panel.values), words_(panel.positions) {}

  int64_t entry() const { return entry_; }

  // Loads the codes and the positions of the next entry. `odd` has the lowest bit of its number, a
  // constant where the caller knows it.
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

 private:
  static constexpr int kBits = kWidth <= 4 ? 2 : kWidth <= 16 ? 4 : 8;
  static constexpr int kWordEntries = 32 / kBits;

  const uint8_t* values_;
  const uint32_t* words_;
  int64_t entry_ = 0;
  Words word_[kParts];
};

template <int kWidth, int kTokens>
FS_VECTOR_INLINE void add(const Floats (&w)[kParts], const Words (&positions)[kParts],
                          const float* x, int64_t m, Sums<kTokens>& sum) {
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      Floats activations;
      pick<kWidth>(x + t * m, positions[p], activations);
      sum[t][p] += w[p] * activations;
    }
  }
}

// Adds `windows` windows of n entries, whose activations start at x. Where n is known the windows
// are taken two at a time, with sums of their own for few tokens, so that an addition rarely waits
// for the one before.
template <ValueType kType, int kWidth, int kN, int kTokens>
FS_VECTOR_INLINE void add_windows(Cursor<kType, kWidth>& cursor, const Extent& extent,
                                  int64_t windows, const float* x, Sums<kTokens>& sum) {
  const int64_t m = extent.m;
  Floats w[kParts];
  Words positions[kParts];
  if constexpr (kN == 0) {
    for (int64_t window = 0; window < windows; ++window, x += kTokens * m) {
      for (int64_t i = 0; i < extent.n; ++i) {
        cursor.next(cursor.entry(), w, positions);
        add<kWidth, kTokens>(w, positions, x, m, sum);
      }
    }
  } else {
    constexpr int kChains = kTokens * kParts <= 2 ? 4 : kTokens * kParts <= 6 ? 2 : 1;
    Sums<kTokens> chains[kChains] = {};
    int64_t window = 0;
    for (; window + 2 <= windows; window += 2) {
#pragma GCC unroll 4
      for (int u = 0; u < 2; ++u, x += kTokens * m) {
#pragma GCC unroll 4
        for (int i = 0; i < kN; ++i) {
          cursor.next(i, w, positions);
          add<kWidth, kTokens>(w, positions, x, m, chains[(u * kN + i) % kChains]);
        }
      }
    }
    for (int i = 0; window < windows && i < kN; ++i) {
      cursor.next(i, w, positions);
      add<kWidth, kTokens>(w, positions, x, m, chains[0]);
    }
    for (int t = 0; t < kTokens; ++t) {
      for (int p = 0; p < kParts; ++p) {
        for (int c = 0; c < kChains; ++c) sum[t][p] += chains[c][t][p];
      }
    }
  }
}

// kN: entries of a window, or 0 for any number; even, as are those of a group then.
template <ValueType kType, int kWidth, int kN, int kTokens>
void multiply_block(const Panel& panel, const Extent& extent, Dtype scale_dtype, const float* x,
                    float* sums) {
  Sums<kTokens> total = {};
  Cursor<kType, kWidth> cursor(panel);
  for (int64_t window = 0, group = 0; window < extent.windows; ++group) {
    const int64_t left = extent.windows - window;
    const int64_t windows = left < extent.group_windows ? left : extent.group_windows;
    Sums<kTokens> sum = {};
    add_windows<kType, kWidth, kN, kTokens>(cursor, extent, windows, x, sum);
    window += windows;
    x += windows * kTokens * extent.m;
    for (int p = 0; p < kParts; ++p) {
      Floats scale;
      widen(panel.scales, group * kRows + p * kLanes, scale_dtype, scale);
      for (int t = 0; t < kTokens; ++t) total[t][p] += scale * (kUnit<kType> * sum[t][p]);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int p = 0; p < kParts; ++p) store(total[t][p], sums + t * kRows + p * kLanes);
  }
}

// One function a block size, in a table by tokens - 1.
using Block = void (*)(const Panel&, const Extent&, Dtype, const float*, float*);
template <ValueType kType, int kWidth, int kN, typename Sizes>
struct Blocks;
template <ValueType kType, int kWidth, int kN, int... kSize>
struct Blocks<kType, kWidth, kN, std::integer_sequence<int, kSize...>> {
  static constexpr Block kTable[] = {multiply_block<kType, kWidth, kN, kSize + 1>...};
};
template <ValueType kType, int kWidth, int kN>
Block block_of(int tokens) {
  using Sizes = std::make_integer_sequence<int, kBlockTokens>;
  return Blocks<kType, kWidth, kN, Sizes>::kTable[tokens - 1];
}

template <ValueType kType>
Block block_of(const Extent& extent, int tokens) {
  if (extent.m <= 4 && extent.n == 2) return block_of<kType, 4, 2>(tokens);
  if (extent.m <= 4) return block_of<kType, 4, 0>(tokens);
  if (extent.m <= 16) return block_of<kType, 16, 0>(tokens);
  return extent.m <= 32 ? block_of<kType, 32, 0>(tokens) : block_of<kType, 256, 0>(tokens);
}

void multiply(const Panel& panel, const Extent& extent, ValueType type, Dtype scale_dtype,
              const float* x, int tokens, float* sums) {
  const Block block = type == ValueType::kInt8  ? block_of<ValueType::kInt8>(extent, tokens)
                      : type == ValueType::kFp8 ? block_of<ValueType::kFp8>(extent, tokens)
                                                : block_of<ValueType::kInt4>(extent, tokens);
  block(panel, extent, scale_dtype, x, sums);
}

constexpr flashsparse::nm_rows::Kernels kTable = {kBlockTokens, widen_all, multiply};

}  // namespace
