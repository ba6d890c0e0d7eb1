// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace flashsparse::elementwise {

inline constexpr int kGateThreads = 256;

enum class Gate { kSilu, kGeluTanh };

struct GateMulArguments {
  const uint16_t* x;  // [tokens, 2 * columns]: gate, then up
  uint16_t* y;        // [tokens, columns], contiguous
  int64_t x_token;
  int tokens, columns;

  // For each token.
  int blocks() const { return (columns / 8 + kGateThreads - 1) / kGateThreads; }
};

}  // namespace flashsparse::elementwise
