// SPDX-License-Identifier: Apache-2.0
// y = x W^T + bias for a weight of any format that can be read as panels (formats/panel.h), whether
// it is stored as panels or its rows are converted just before they are multiplied.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/aligned_buffer.h"
#include "common/dtype.h"
#include "common/parallel.h"
#include "cpu/kernels.h"
#include "cpu/scalar.h"

namespace flashsparse::cpu {

// x, bias and y have one dtype, which determines the arithmetic:
//   bf16 x, bf16 w   products of column pairs, accumulated in fp32 (vdpbf16ps if the CPU has it)
//   anything else    x and w converted to fp32, where they are exact, fused multiply-add
// Quantized values are converted, too, and accumulators are multiplied by the scale of their row.
// The result is rounded once, to the dtype of y, after the bias was added in fp32. The order of
// additions depends only on shapes: results are the same from run to run and for any number of
// threads. docs/formats.md describes infinities, NaN and subnormal numbers.
//
// Scratch: the packed activations of at most 512 tokens, 2 bytes (bf16 by bf16) or 4 bytes each.
struct LinearProblem {
  int64_t out_features, in_features;
  Dtype weight_dtype;
  const void* x;  // [tokens, in_features]
  int64_t tokens;
  const void* bias;                   // [out_features], or null
  void* y;                            // [tokens, out_features]
  Dtype dtype;                        // of x, bias and y
  const float* row_scales = nullptr;  // [out_features] for int8 values
};

// Divides tokens into blocks of nearly equal size, the fewest that fit in registers: 13 tokens run
// as 7 + 6, not as 12 + 1.
struct TokenBlocks {
  int64_t tokens, count;

  TokenBlocks(int64_t tokens, int64_t most) : tokens(tokens), count((tokens + most - 1) / most) {}
  int64_t begin(int64_t block) const { return tokens * block / count; }
  int size(int64_t block) const { return static_cast<int>(begin(block + 1) - begin(block)); }
};

// Adds the bias to sums[token][16 rows] of a panel, rounds, and writes them to y from `token` on.
void store_panel(const LinearProblem& problem, const float* sums, int64_t panel, int64_t token,
                 int tokens);

// A problem of at most kMaxTokens tokens, to which panels of W can be given from any thread and in
// any order.
class LinearCall {
 public:
  static constexpr int64_t kMaxTokens = 512;  // bounds the scratch memory

  // Packs the activations, in parallel if that pays.
  explicit LinearCall(const LinearProblem& problem);

  // Multiplies `count` panels, of which the first is number `first` of the weight, and writes their
  // rows of y. About eight are best: few enough to stay in L2 from one block of tokens to the next,
  // enough to reuse a block's activations. Thread-safe.
  void multiply(const Panel* panels, int count, int64_t first) const;

 private:
  const LinearKernels& linear_;
  LinearProblem problem_;
  TokenBlocks blocks_;
  int64_t pairs_;
  AlignedBuffer buffer_;
  const char* activations_;  // block after block, each [pair][token]
};

// Calls body(problem) for at most LinearCall::kMaxTokens tokens at a time.
template <typename Body>
void for_each_slab(const LinearProblem& problem, const Body& body) {
  const int64_t bytes = bytes_of(problem.dtype);
  for (int64_t begin = 0; begin < problem.tokens; begin += LinearCall::kMaxTokens) {
    LinearProblem slab = problem;
    slab.tokens = std::min(LinearCall::kMaxTokens, problem.tokens - begin);
    slab.x = static_cast<const char*>(problem.x) + begin * problem.in_features * bytes;
    slab.y = static_cast<char*>(problem.y) + begin * problem.out_features * bytes;
    body(slab);
  }
}

// Panels in a thread's chunk, if they need not be converted first.
int64_t chunk_panels(const LinearProblem& problem);

// Multiplies a weight that is stored as panels; panel_at(number) returns each of them.
template <typename PanelAt>
void multiply_panels(const LinearProblem& problem, const PanelAt& panel_at) {
  const int64_t all = panels(problem.out_features);
  for_each_slab(problem, [&](const LinearProblem& slab) {
    const LinearCall call(slab);
    const int64_t chunk = chunk_panels(slab);
    parallel_chunks((all + chunk - 1) / chunk, [&](int64_t index) {
      constexpr int kGroup = 8;
      const int64_t end = std::min(all, (index + 1) * chunk);
      for (int64_t first = index * chunk; first < end; first += kGroup) {
        const int count = static_cast<int>(std::min<int64_t>(kGroup, end - first));
        Panel group[kGroup];
        for (int p = 0; p < count; ++p) group[p] = panel_at(first + p);
        call.multiply(group, count, first);
      }
    });
  });
}

// Adjacent panels that a reader fills: it appends values at end[p], advances it, and writes the
// mask words of all column pairs.
template <int kMost>
struct GrowingPanels {
  int count = 0;
  uint32_t* masks[kMost];
  uint16_t* begin[kMost];
  uint16_t* end[kMost];

  // Allocates values for every element of each panel, at a constant stride.
  void assign_values(AlignedBuffer& buffer, int64_t in_features) {
    const int64_t stride = kPanelRows * in_features + kValueSlack;
    uint16_t* values = buffer.get<uint16_t>(count * stride);
    for (int p = 0; p < count; ++p) begin[p] = end[p] = values + p * stride;
  }
};

// The panels of group `group` of `kGroup` panels each.
template <int kGroup>
GrowingPanels<kGroup> panels_of_group(int64_t group, int64_t out_features) {
  GrowingPanels<kGroup> result;
  const int64_t left = panels(out_features) - group * kGroup;
  result.count = static_cast<int>(std::min<int64_t>(kGroup, left));
  return result;
}

// Multiplies a weight that is stored in another form: read(group, panels) fills the panels of a
// group of kGroup * 16 rows, which exist until they have been multiplied. `read` must be
// thread-safe. A thread needs about 34 bytes of scratch per panel and column.
template <int kGroup, typename Read>
void multiply_after_reading(const LinearProblem& problem, const Read& read) {
  const int64_t pairs = column_pairs(problem.in_features);
  const int64_t groups = (panels(problem.out_features) + kGroup - 1) / kGroup;
  for_each_slab(problem, [&](const LinearProblem& slab) {
    const LinearCall call(slab);
    parallel_chunks(groups, [&](int64_t group) {
      static thread_local AlignedBuffer value_buffer, mask_buffer;
      auto growing = panels_of_group<kGroup>(group, problem.out_features);
      growing.assign_values(value_buffer, problem.in_features);
      uint32_t* masks = mask_buffer.get<uint32_t>(growing.count * pairs);
      for (int p = 0; p < growing.count; ++p) growing.masks[p] = masks + p * pairs;
      read(group, growing);
      Panel read_panels[kGroup];
      for (int p = 0; p < growing.count; ++p) {
        read_panels[p] = {growing.masks[p], growing.begin[p]};
      }
      call.multiply(read_panels, growing.count, group * kGroup);
    });
  });
}

}  // namespace flashsparse::cpu
