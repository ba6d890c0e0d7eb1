// SPDX-License-Identifier: Apache-2.0
// One x W^T + bias, ready to be given panels of W from any thread and in any order.
#pragma once
#include <cstdint>

#include "common/aligned_buffer.h"
#include "cpu/dtype.h"
#include "cpu/kernels.h"

namespace flashsparse::cpu {

// The tokens are cut into blocks of nearly equal size, the fewest that registers can hold: 13
// tokens run as 7 + 6 and not as 12 + 1.
struct TokenBlocks {
  int64_t tokens, count;

  TokenBlocks(int64_t tokens, int64_t most) : tokens(tokens), count((tokens + most - 1) / most) {}
  int64_t begin(int64_t block) const { return tokens * block / count; }
  int size(int64_t block) const { return static_cast<int>(begin(block + 1) - begin(block)); }
};

class LinearCall {
 public:
  // Calls run in slabs of at most this many tokens, which bounds the scratch memory.
  static constexpr int64_t kMaxTokens = 512;

  // tokens in [1, kMaxTokens]; y points to the first of them, its rows are out_features long.
  // Packs the activations, in parallel where that pays.
  LinearCall(Dtype weight_dtype, Dtype dtype, const void* x, int64_t tokens, int64_t in_features,
             const void* bias, int64_t out_features, void* y);

  // Multiplies `count` panels, the first of which is number `first` of the weight, and writes their
  // rows of y. Eight or so are best: few enough to stay in L2 from one block of tokens to the next,
  // enough to use a block's activations again. Any number of threads may be in here at once.
  void multiply(const Panel* panels, int count, int64_t first) const;

 private:
  void store(const float* sums, int64_t panel, int64_t token, int tokens) const;

  const Kernels& kernels_;
  const LinearKernels& linear_;
  TokenBlocks blocks_;
  int64_t pairs_, out_features_;
  const void* bias_;
  void* y_;
  Dtype dtype_;
  AlignedBuffer buffer_;
  const char* activations_;  // block after block, each [pair][token]
};

}  // namespace flashsparse::cpu
