// SPDX-License-Identifier: Apache-2.0
// Packs activations and stores results: the only conversions between dtypes.
#include "cpu/portable/parts.h"
#include "cpu/scalar.h"

namespace flashsparse::cpu::portable {
// packed[column][token] = fp32; a pair is two columns.
void pack_float32_activations(const void* x, Dtype dtype, int64_t in_features, int tokens,
                              int64_t first, int64_t last, void* packed) {
  float* out = static_cast<float*>(packed) + 2 * first * tokens;
  const int64_t begin = 2 * first, end = 2 * last;
  const int64_t inside = end < in_features ? end : in_features;
  for (int t = 0; t < tokens; ++t) {
    for (int64_t col = begin; col < inside; ++col) {
      out[(col - begin) * tokens + t] = load(x, t * in_features + col, dtype);
    }
    for (int64_t col = inside; col < end; ++col) out[(col - begin) * tokens + t] = 0;
  }
}

void store(const float* sums, int tokens, const float* bias, int rows, void* y, int64_t stride,
           Dtype dtype) {
  for (int t = 0; t < tokens; ++t, sums += 16) {
    for (int r = 0; r < rows; ++r) {
      cpu::store(y, t * stride + r, sums[r] + bias[r], dtype);
    }
  }
}

}  // namespace flashsparse::cpu::portable
