// SPDX-License-Identifier: Apache-2.0
#include "cpu/panels.h"

namespace flashsparse::cpu {
namespace {

const LinearKernels& select(const Kernels& kernels, const LinearProblem& problem) {
  const Dtype weight_dtype = problem.weight_dtype, dtype = problem.dtype;
  if (problem.row_scales) {
    return dtype == Dtype::kBFloat16 && kernels.int8_bfloat16 ? *kernels.int8_bfloat16
                                                              : *kernels.int8_float32;
  }
  if (weight_dtype == Dtype::kFloat32) return *kernels.float32;
  if (weight_dtype == Dtype::kFloat16) return *kernels.float16_float32;
  if (dtype == Dtype::kBFloat16 && kernels.bfloat16_dot) return *kernels.bfloat16_dot;
  return *kernels.bfloat16_float32;
}

// Multiplies sums[token][16 rows] of int8 values by the scales of their rows.
void scale_panel(const LinearProblem& problem, int64_t panel, int tokens, float* sums) {
  const int64_t row = panel * kPanelRows;
  const int rows = static_cast<int>(std::min<int64_t>(kPanelRows, problem.out_features - row));
  float scales[kPanelRows] = {};
  std::copy_n(problem.row_scales + row, rows, scales);
  for (int t = 0; t < tokens; ++t) {
    for (int r = 0; r < kPanelRows; ++r) sums[t * kPanelRows + r] *= scales[r];
  }
}

}  // namespace

// A thread takes a whole layer of up to about 50 us alone: two threads would gain little, and if
// another process has one of their cores, waiting for the second one takes a hundred times as long.
// Otherwise a thread takes a sixteenth of its share, so that the last one finishes soon after the
// others, but enough to be worth the synchronization.
int64_t chunk_panels(const LinearProblem& problem) {
  constexpr int64_t kMinProducts = 1 << 17, kSerialProducts = 1 << 20;
  const int64_t all = panels(problem.out_features);
  const int64_t products =  // of a panel
      kPanelRows * problem.in_features * std::min<int64_t>(problem.tokens, 8);
  if (all * products < kSerialProducts) return all;
  return std::max<int64_t>({all / (16 * num_threads()), kMinProducts / products, 1});
}

LinearCall::LinearCall(const LinearProblem& problem)
    : linear_(select(kernels(), problem)),
      problem_(problem),
      blocks_(problem.tokens, linear_.block_tokens),
      pairs_(column_pairs(problem.in_features)) {
  const int64_t in_features = problem.in_features, tokens = problem.tokens;
  const Dtype dtype = problem.dtype;
  // A single token of the packed dtype, with no odd column, is in packed order already.
  if (tokens == 1 && in_features % 2 == 0 && 2 * bytes_of(dtype) == linear_.activation_bytes) {
    activations_ = static_cast<const char*>(problem.x);
    return;
  }
  char* packed = buffer_.get<char>(tokens * pairs_ * linear_.activation_bytes);
  activations_ = packed;
  const auto pack = [&](int64_t block, int64_t first, int64_t last) {
    const int64_t token = blocks_.begin(block);
    linear_.pack_activations(
        static_cast<const char*>(problem_.x) + token * in_features * bytes_of(dtype), dtype,
        in_features, blocks_.size(block), first, last,
        packed + token * pairs_ * linear_.activation_bytes);
  };
  // Packing is one step for each activation, multiplying is one for each panel and activation. If a
  // thread has many panels to multiply, starting all threads a second time would cost more than it
  // saves, above all if another process has one of their cores.
  const bool alone = panels(problem.out_features) >= 32 * num_threads();
  constexpr int64_t kChunkPairs = 4096;  // about 10 us of work
  const int64_t chunk_pairs = alone ? pairs_ : kChunkPairs;
  const int64_t chunks = (pairs_ + chunk_pairs - 1) / chunk_pairs;
  const auto pack_chunk = [&](int64_t index) {
    const int64_t first = index % chunks * chunk_pairs;
    pack(index / chunks, first, std::min(pairs_, first + chunk_pairs));
  };
  if (alone) {
    for (int64_t block = 0; block < blocks_.count; ++block) pack_chunk(block);
  } else {
    parallel_chunks(blocks_.count * chunks, pack_chunk);
  }
}

void LinearCall::multiply(const Panel* panels, int count, int64_t first) const {
  alignas(64) float sums[LinearKernels::kMostBlockTokens * kPanelRows];
  for (int64_t block = 0; block < blocks_.count; ++block) {
    const int64_t token = blocks_.begin(block);
    const char* packed = activations_ + token * pairs_ * linear_.activation_bytes;
    for (int p = 0; p < count; ++p) {
      linear_.multiply(panels[p], pairs_, packed, blocks_.size(block), sums);
      if (problem_.row_scales) scale_panel(problem_, first + p, blocks_.size(block), sums);
      store_panel(problem_, sums, first + p, token, blocks_.size(block));
    }
  }
}

void store_panel(const LinearProblem& problem, const float* sums, int64_t panel, int64_t token,
                 int tokens) {
  const int64_t row = panel * kPanelRows, out_features = problem.out_features;
  const Dtype dtype = problem.dtype;
  const int rows = static_cast<int>(std::min<int64_t>(kPanelRows, out_features - row));
  float bias[kPanelRows] = {};
  for (int r = 0; problem.bias && r < rows; ++r) bias[r] = load(problem.bias, row + r, dtype);
  char* y = static_cast<char*>(problem.y) + (token * out_features + row) * bytes_of(dtype);
  kernels().store(sums, tokens, bias, rows, y, out_features, dtype);
}

}  // namespace flashsparse::cpu
