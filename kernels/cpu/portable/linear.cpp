// SPDX-License-Identifier: Apache-2.0
// The product in plain C++, in fp32. Few tokens: one step a kept weight, with the tokens in the
// compiler's vector lanes. Many: a decoded tile, with the 16 rows of a panel in them.
#include <cstring>

#include "common/float16.h"
#include "cpu/portable/parts.h"

namespace flashsparse::cpu::portable {
namespace {

constexpr int kRows = 16;
constexpr int kMaxFusedTokens = 8, kBlockTokens = 8;
constexpr int64_t kTilePairs = 64;  // 8 KB of L1

using Widen = float (*)(uint16_t);

template <Widen kWiden, int kTokens>
void fused_block(const Panel& panel, int64_t pairs, const float* x, float* sums) {
  // Even and odd columns apart: two products in a row never wait for the same sum.
  float sum[2 * kRows][kTokens] = {};
  const uint16_t* value = panel.values;
  for (int64_t k = 0; k < pairs; ++k, x += 2 * kTokens) {
    for (uint32_t mask = panel.masks[k]; mask; mask &= mask - 1) {
      const int bit = __builtin_ctz(mask);
      const float w = kWiden(*value++);
      const float* activations = x + (bit & 1) * kTokens;
      for (int t = 0; t < kTokens; ++t) sum[bit][t] += w * activations[t];
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kRows; ++r) sums[t * kRows + r] = sum[2 * r][t] + sum[2 * r + 1][t];
  }
}

template <Widen kWiden>
void fused(const Panel* panels, int, int64_t pairs, const void* packed, int tokens, float* sums) {
  const float* x = static_cast<const float*>(packed);
  switch (tokens) {
    case 1: return fused_block<kWiden, 1>(*panels, pairs, x, sums);
    case 2: return fused_block<kWiden, 2>(*panels, pairs, x, sums);
    case 3: return fused_block<kWiden, 3>(*panels, pairs, x, sums);
    case 4: return fused_block<kWiden, 4>(*panels, pairs, x, sums);
    case 5: return fused_block<kWiden, 5>(*panels, pairs, x, sums);
    case 6: return fused_block<kWiden, 6>(*panels, pairs, x, sums);
    case 7: return fused_block<kWiden, 7>(*panels, pairs, x, sums);
    default: return fused_block<kWiden, 8>(*panels, pairs, x, sums);
  }
}

// tile[column][row]
template <Widen kWiden>
const uint16_t* decode(const Panel& panel, int64_t pairs, void* tile) {
  const uint16_t* value = panel.values;
  float* out = static_cast<float*>(tile);
  std::memset(out, 0, pairs * 2 * kRows * sizeof(float));
  for (int64_t k = 0; k < pairs; ++k, out += 2 * kRows) {
    for (uint32_t mask = panel.masks[k]; mask; mask &= mask - 1) {
      const int bit = __builtin_ctz(mask);
      out[(bit & 1) * kRows + bit / 2] = kWiden(*value++);
    }
  }
  return value;
}

// The sums of two tokens are all that the 16 vector registers of SSE2 can hold beside a column.
template <int kTokens>
void multiply_tokens(const float* tile, int64_t pairs, const float* x, int stride, float* sums) {
  float sum[kTokens][kRows];
  std::memcpy(sum, sums, sizeof sum);
  for (int64_t col = 0; col < 2 * pairs; ++col, tile += kRows, x += stride) {
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kRows; ++r) sum[t][r] += tile[r] * x[t];
    }
  }
  std::memcpy(sums, sum, sizeof sum);
}

void multiply(const void* tiles, int, int64_t pairs, const void* packed, int tokens, float* sums) {
  const float* tile = static_cast<const float*>(tiles);
  const float* x = static_cast<const float*>(packed);
  int t = 0;
  for (; t + 2 <= tokens; t += 2) {
    multiply_tokens<2>(tile, pairs, x + t, tokens, sums + t * kRows);
  }
  if (t < tokens) multiply_tokens<1>(tile, pairs, x + t, tokens, sums + t * kRows);
}

template <Widen kWiden>
constexpr LinearKernels linear_kernels() {
  return {/*activation_bytes=*/8,
          kMaxFusedTokens,
          kBlockTokens,
          /*step_panels=*/1,
          kTilePairs,
          /*tile_pair_bytes=*/2 * kRows * sizeof(float),
          pack_float32_activations,
          fused<kWiden>,
          decode<kWiden>,
          multiply};
}

}  // namespace

const LinearKernels kBFloat16Float32 = linear_kernels<float_from_bfloat16>();
const LinearKernels kFloat16Float32 = linear_kernels<float_from_float16>();

}  // namespace flashsparse::cpu::portable
