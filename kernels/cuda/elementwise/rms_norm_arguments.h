// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "common/host_device.h"

namespace flashsparse::elementwise {

inline constexpr int kNormThreads = 512, kMaxNormVectors = 8;  // of a block; of a thread
inline constexpr int64_t kMaxNormColumns = int64_t{kNormThreads} * kMaxNormVectors * 8;

struct RmsNormArguments {
  const uint16_t* x;         // [tokens, heads, columns]
  const uint16_t* residual;  // the same, or null
  const uint16_t* weight;    // [columns]
  uint16_t* y;               // [tokens, heads, columns], contiguous
  uint16_t* sum;             // x + residual, like y; null without a residual
  int64_t x_token, x_head, residual_token, residual_head;
  int tokens, heads, columns;
  float epsilon;
  bool adds_one;  // to the weight, which then multiplies in fp32 (Gemma)

  FS_HOST_DEVICE int vectors() const { return columns / 8; }
  // Of a block, whole warps.
  int threads() const {
    const int warps = (vectors() + 31) / 32 * 32;
    return warps < kNormThreads ? warps : kNormThreads;
  }
  int vectors_per_thread() const { return (vectors() + threads() - 1) / threads(); }
};

}  // namespace flashsparse::elementwise
