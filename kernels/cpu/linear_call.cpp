// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear_call.h"

#include <algorithm>

#include "common/parallel.h"
#include "cpu/scalar.h"
#include "formats/interleaved_bitmap.h"

namespace flashsparse::cpu {
namespace {

using interleaved_bitmap::kPanelRows;

const LinearKernels& select(const Kernels& kernels, Dtype weight_dtype, Dtype dtype) {
  if (weight_dtype == Dtype::kFloat16) return *kernels.float16_float32;
  if (dtype == Dtype::kBFloat16 && kernels.bfloat16_dot) return *kernels.bfloat16_dot;
  return *kernels.bfloat16_float32;
}

}  // namespace

LinearCall::LinearCall(Dtype weight_dtype, Dtype dtype, const void* x, int64_t tokens,
                       int64_t in_features, const void* bias, int64_t out_features, void* y)
    : kernels_(kernels()),
      linear_(select(kernels_, weight_dtype, dtype)),
      blocks_(tokens, linear_.block_tokens),
      pairs_(interleaved_bitmap::column_pairs(in_features)),
      out_features_(out_features),
      bias_(bias),
      y_(y),
      dtype_(dtype) {
  // One token of the right dtype and with no odd column left over is in packed order already.
  if (tokens == 1 && in_features % 2 == 0 && 2 * bytes_of(dtype) == linear_.activation_bytes) {
    activations_ = static_cast<const char*>(x);
    return;
  }
  char* packed = buffer_.get<char>(tokens * pairs_ * linear_.activation_bytes);
  activations_ = packed;
  const auto pack = [&](int64_t block, int64_t first, int64_t last) {
    const int64_t token = blocks_.begin(block);
    linear_.pack_activations(static_cast<const char*>(x) + token * in_features * bytes_of(dtype),
                             dtype, in_features, blocks_.size(block), first, last,
                             packed + token * pairs_ * linear_.activation_bytes);
  };
  // Packing is one step an activation, multiplying is one a panel and activation. While a thread
  // has many panels to come, a second start of all the threads would cost more than it saves,
  // above all where another process holds one of their cores.
  const bool alone = interleaved_bitmap::panels(out_features) >= 32 * num_threads();
  constexpr int64_t kChunkPairs = 4096;  // some 10 us of work
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
      store(sums, first + p, token, blocks_.size(block));
    }
  }
}

void LinearCall::store(const float* sums, int64_t panel, int64_t token, int tokens) const {
  const int64_t row = panel * kPanelRows;
  const int rows = static_cast<int>(std::min<int64_t>(kPanelRows, out_features_ - row));
  float bias[kPanelRows] = {};
  for (int r = 0; bias_ && r < rows; ++r) bias[r] = load(bias_, row + r, dtype_);
  char* y = static_cast<char*>(y_) + (token * out_features_ + row) * bytes_of(dtype_);
  kernels_.store(sums, tokens, bias, rows, y, out_features_, dtype_);
}

}  // namespace flashsparse::cpu
