// SPDX-License-Identifier: Apache-2.0
// Entry by entry: 16 weights in registers, multiplied by the activations of their columns for every
// token of a block. Everything is widened to fp32, where it is exact; the sums of a group of codes
// are multiplied by its scales. What differs is where the columns come from: panels_product.h and
// rows_product.h.
//
// The folder that includes this brings, beside what cpu/codes.h asks for,
//   pick<width>(window, positions, to)  to[lane] = window[positions[lane] mod width]
// and may read window[0 .. width).
#pragma once
#include <utility>

#include "cpu/codes.h"
#include "cpu/cpu_panels/kernels.h"

namespace {

using flashsparse::cpu_panels::Extent;
using flashsparse::cpu_panels::Panel;

constexpr int kRows = 16, kParts = kRows / kLanes;
constexpr int64_t kPrefetchAhead = 4096;  // bytes; far enough to hide the latency of DRAM

template <int kTokens>
using Sums = Floats[kTokens][kParts];

// Sums in flight, so that an addition rarely waits for the one before.
constexpr int chains_of(int tokens) {
  return tokens * kParts <= 2 ? 4 : tokens * kParts <= 6 ? 2 : 1;
}

template <int kTokens, int kChains>
FS_VECTOR_INLINE void add_chains(const Sums<kTokens> (&chains)[kChains], Sums<kTokens>& sum) {
  for (int t = 0; t < kTokens; ++t) {
    for (int p = 0; p < kParts; ++p) {
      sum[t][p] = chains[0][t][p];
      for (int c = 1; c < kChains; ++c) sum[t][p] += chains[c][t][p];
    }
  }
}

// Source: has a panel's entries, and add(windows, sum) multiplies those of the next windows.
template <typename Source, int kTokens>
void multiply_block(const Panel& panel, const Extent& extent, const float* x, float* sums) {
  Sums<kTokens> sum, total = {};
  Source source(panel, extent, x);
  for (int64_t window = 0, group = 0; window < extent.windows; ++group) {
    const int64_t left = extent.windows - window;
    const int64_t windows = left < extent.group_windows ? left : extent.group_windows;
    source.template add<kTokens>(windows, sum);
    window += windows;
    for (int p = 0; p < kParts; ++p) {
      if constexpr (Source::kType != ValueType::kNative) {
        Floats scale;
        widen(panel.scales, group * kRows + p * kLanes, extent.scale_dtype, scale);
        for (int t = 0; t < kTokens; ++t) {
          total[t][p] += scale * (kUnit<Source::kType> * sum[t][p]);
        }
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
using Block = void (*)(const Panel&, const Extent&, const float*, float*);
template <typename Source, typename Sizes>
struct Blocks;
template <typename Source, int... kSize>
struct Blocks<Source, std::integer_sequence<int, kSize...>> {
  static constexpr Block kTable[] = {multiply_block<Source, kSize + 1>...};
};
template <typename Source, int kMostTokens>
Block block_of(int tokens) {
  return Blocks<Source, std::make_integer_sequence<int, kMostTokens>>::kTable[tokens - 1];
}

}  // namespace
