// SPDX-License-Identifier: Apache-2.0
// The product in plain C++, in fp32: one step a kept weight, with the tokens in the compiler's
// vector lanes.
#include "common/float16.h"
#include "cpu/portable/parts.h"

namespace flashsparse::cpu::portable {
namespace {

constexpr int kRows = 16;
constexpr int kBlockTokens = 8;

using Widen = float (*)(uint16_t);

template <Widen kWiden, int kTokens>
void multiply_block(const Panel& panel, int64_t pairs, const float* x, float* sums) {
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
void multiply(const Panel& panel, int64_t pairs, const void* packed, int tokens, float* sums) {
  const float* x = static_cast<const float*>(packed);
  switch (tokens) {
    case 1:
      return multiply_block<kWiden, 1>(panel, pairs, x, sums);
    case 2:
      return multiply_block<kWiden, 2>(panel, pairs, x, sums);
    case 3:
      return multiply_block<kWiden, 3>(panel, pairs, x, sums);
    case 4:
      return multiply_block<kWiden, 4>(panel, pairs, x, sums);
    case 5:
      return multiply_block<kWiden, 5>(panel, pairs, x, sums);
    case 6:
      return multiply_block<kWiden, 6>(panel, pairs, x, sums);
    case 7:
      return multiply_block<kWiden, 7>(panel, pairs, x, sums);
    default:
      return multiply_block<kWiden, 8>(panel, pairs, x, sums);
  }
}

template <Widen kWiden>
constexpr LinearKernels linear_kernels() {
  return {/*activation_bytes=*/8, kBlockTokens, pack_float32_activations, multiply<kWiden>};
}

}  // namespace

const LinearKernels kBFloat16Float32 = linear_kernels<float_from_bfloat16>();
const LinearKernels kFloat16Float32 = linear_kernels<float_from_float16>();

}  // namespace flashsparse::cpu::portable
