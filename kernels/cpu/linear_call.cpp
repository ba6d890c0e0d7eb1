// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear_call.h"

#include <algorithm>
#include <cstring>

#include "common/float16.h"
#include "common/parallel.h"
#include "formats/interleaved_bitmap.h"

namespace flashsparse::cpu {
namespace {

using interleaved_bitmap::kPanelRows;

constexpr int kMaxBlockTokens = 16, kMaxStepPanels = 4;  // of any instruction set

const LinearKernels& select(const Kernels& kernels, Dtype weight_dtype, Dtype dtype) {
  if (weight_dtype == Dtype::kFloat16) return *kernels.float16_float32;
  if (dtype == Dtype::kBFloat16 && kernels.bfloat16_dot) return *kernels.bfloat16_dot;
  return *kernels.bfloat16_float32;
}

float load(const void* data, int64_t index, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32: return static_cast<const float*>(data)[index];
    case Dtype::kFloat16: return float_from_float16(static_cast<const uint16_t*>(data)[index]);
    default: return float_from_bfloat16(static_cast<const uint16_t*>(data)[index]);
  }
}

int64_t bytes_of(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

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
  constexpr int64_t kChunkPairs = 4096;  // some 10 us of work
  const int64_t chunks = (pairs_ + kChunkPairs - 1) / kChunkPairs;
  parallel_chunks(blocks_.count * chunks, [&](int64_t index) {
    const int64_t first = index % chunks * kChunkPairs;
    pack(index / chunks, first, std::min(pairs_, first + kChunkPairs));
  });
}

const char* LinearCall::packed(int64_t block, int64_t pair) const {
  return activations_ +
         (blocks_.begin(block) * pairs_ + pair * blocks_.size(block)) * linear_.activation_bytes;
}

void LinearCall::multiply(const Panel* panels, int count, int64_t first) const {
  const bool few = blocks_.tokens <= linear_.max_fused_tokens;
  for (int p = 0; p < count; p += linear_.step_panels) {
    const int step = std::min(count - p, linear_.step_panels);
    few ? fused(panels + p, step, first + p) : tiled(panels + p, step, first + p);
  }
}

void LinearCall::fused(const Panel* panels, int count, int64_t first) const {
  alignas(64) float sums[kMaxStepPanels * kMaxBlockTokens * kPanelRows];
  for (int64_t block = 0; block < blocks_.count; ++block) {
    linear_.fused(panels, count, pairs_, packed(block, 0), blocks_.size(block), sums);
    store(sums, count, first, blocks_.begin(block), blocks_.size(block));
  }
}

void LinearCall::tiled(const Panel* panels, int count, int64_t first) const {
  static thread_local AlignedBuffer scratch;
  const int64_t tile_bytes = linear_.tile_pairs * linear_.tile_pair_bytes;
  const int64_t tiles_bytes = tile_bytes * linear_.step_panels;
  const int64_t block_floats = count * kPanelRows;  // of one token
  char* tiles = scratch.get<char>(tiles_bytes + blocks_.tokens * block_floats * sizeof(float));
  float* sums = reinterpret_cast<float*>(tiles + tiles_bytes);
  std::memset(sums, 0, blocks_.tokens * block_floats * sizeof(float));
  Panel at[kMaxStepPanels];
  std::copy(panels, panels + count, at);
  for (int64_t pair = 0; pair < pairs_; pair += linear_.tile_pairs) {
    const int64_t pairs = std::min(linear_.tile_pairs, pairs_ - pair);
    for (int p = 0; p < count; ++p) {
      at[p].values = linear_.decode(at[p], pairs, tiles + p * tile_bytes);
      at[p].masks += pairs;
    }
    for (int64_t block = 0; block < blocks_.count; ++block) {
      linear_.multiply(tiles, count, pairs, packed(block, pair), blocks_.size(block),
                       sums + blocks_.begin(block) * block_floats);
    }
  }
  for (int64_t block = 0; block < blocks_.count; ++block) {
    store(sums + blocks_.begin(block) * block_floats, count, first, blocks_.begin(block),
          blocks_.size(block));
  }
}

void LinearCall::store(const float* sums, int count, int64_t first, int64_t token,
                       int tokens) const {
  for (int p = 0; p < count; ++p) {
    const int64_t row = (first + p) * kPanelRows;
    const int rows = static_cast<int>(std::min<int64_t>(kPanelRows, out_features_ - row));
    float bias[kPanelRows] = {};
    for (int r = 0; bias_ && r < rows; ++r) bias[r] = load(bias_, row + r, dtype_);
    char* y = static_cast<char*>(y_) + (token * out_features_ + row) * bytes_of(dtype_);
    kernels_.store(sums + p * tokens * kPanelRows, tokens, bias, rows, y, out_features_, dtype_);
  }
}

}  // namespace flashsparse::cpu
