// SPDX-License-Identifier: Apache-2.0
// The product in plain C++, in fp32: one step for each kept weight, with tokens in the compiler's
// vector lanes.
#include <utility>

#include "common/float16.h"
#include "cpu/portable/parts.h"

namespace flashsparse::cpu::portable {
namespace {

constexpr int kRows = 16;
constexpr int kBlockTokens = 16;

template <typename Value>
using Widen = float (*)(Value);

inline float float_from_code(int8_t code) { return code; }

// If an activation is infinite or NaN, its product with a zero is NaN. A dense product has it; the
// loop over kept weights does not.
template <int kTokens>
void add_zeros(const Panel& panel, int64_t pairs, const float* x,
               float (&sum)[2 * kRows][kTokens]) {
  float products[kTokens] = {};  // with zeros: NaN for tokens with such an activation
  for (int64_t col = 0; col < 2 * pairs; ++col) {
    for (int t = 0; t < kTokens; ++t) products[t] += 0 * x[col * kTokens + t];
  }
  for (int t = 0; t < kTokens; ++t) {
    if (products[t] == 0) continue;
    for (int64_t col = 0; col < 2 * pairs; ++col) {
      const float product = 0 * x[col * kTokens + t];
      if (product == 0) continue;
      for (int r = 0; r < kRows; ++r) {
        const int bit = 2 * r + static_cast<int>(col & 1);
        if (!(panel.masks[col / 2] >> bit & 1)) sum[bit][t] += product;
      }
    }
  }
}

template <typename Value, Widen<Value> kWiden, int kTokens>
void multiply_block(const Panel& panel, int64_t pairs, const float* x, float* sums) {
  // Separate accumulators for even and odd columns: consecutive products never wait for each other.
  float sum[2 * kRows][kTokens] = {};
  add_zeros(panel, pairs, x, sum);
  const Value* value = static_cast<const Value*>(panel.values);
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

// One function for each block size, in a table indexed by tokens - 1.
template <typename Value, Widen<Value> kWiden, typename Sizes>
struct Blocks;
template <typename Value, Widen<Value> kWiden, int... kSize>
struct Blocks<Value, kWiden, std::integer_sequence<int, kSize...>> {
  static constexpr void (*kTable[])(const Panel&, int64_t, const float*,
                                    float*) = {multiply_block<Value, kWiden, kSize + 1>...};
};

template <typename Value, Widen<Value> kWiden>
void multiply(const Panel& panel, int64_t pairs, const void* packed, int tokens, float* sums) {
  using Sizes = std::make_integer_sequence<int, kBlockTokens>;
  Blocks<Value, kWiden, Sizes>::kTable[tokens - 1](panel, pairs, static_cast<const float*>(packed),
                                                   sums);
}

template <typename Value, Widen<Value> kWiden>
constexpr LinearKernels linear_kernels() {
  return {/*activation_bytes=*/8, kBlockTokens, pack_float32_activations, multiply<Value, kWiden>};
}

}  // namespace

const LinearKernels kBFloat16Float32 = linear_kernels<uint16_t, float_from_bfloat16>();
const LinearKernels kFloat16Float32 = linear_kernels<uint16_t, float_from_float16>();
const LinearKernels kFloat32 = linear_kernels<uint32_t, float_from_bits>();
const LinearKernels kInt8Float32 = linear_kernels<int8_t, float_from_code>();

}  // namespace flashsparse::cpu::portable
