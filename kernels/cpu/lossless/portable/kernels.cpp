// SPDX-License-Identifier: Apache-2.0
#include "cpu/lossless/kernels.h"

#include "cpu/lossless/rows.h"
#include "cpu/vectors.h"

namespace flashsparse::lossless::portable {
namespace {

constexpr int kTokens = 4;

void pack_activations(const void* x, Dtype dtype, int64_t columns, void* packed_) {
  float* packed = static_cast<float*>(packed_);
  widen_all(x, dtype, columns, packed);
  for (int64_t col = columns; col < chunks(columns) * kChunkColumns; ++col) packed[col] = 0;
}

void multiply(const uint8_t* const (&rows)[kRows], const uint8_t (&bases)[kRows], int64_t chunks,
              const void* packed, int64_t stride, int tokens, float* sums) {
  for (int i = 0; i < kRows; ++i) {
    Floats parts[kTokens] = {};
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      uint16_t bits[kChunkColumns];
      float weights[kChunkColumns];
      unpack_chunk(rows[i] + chunk * kChunkBytes, bases[i], bits);
      widen_all(bits, Dtype::kBFloat16, kChunkColumns, weights);
      for (int t = 0; t < tokens; ++t) {
        const float* x =
            reinterpret_cast<const float*>(static_cast<const char*>(packed) + t * stride) +
            chunk * kChunkColumns;
        for (int j = 0; j < kChunkColumns; j += kLanes) {
          Floats weight, activation;
          load(weights + j, weight);
          load(x + j, activation);
          parts[t] += weight * activation;
        }
      }
    }
    for (int t = 0; t < tokens; ++t) {
      float sum = 0;
      for (int lane = 0; lane < kLanes; ++lane) sum += parts[t][lane];
      sums[t * kRows + i] = sum;
    }
  }
}

const LinearKernels kFloat32 = {4, kTokens, pack_activations, multiply};

}  // namespace

const Kernels kKernels = {nullptr, &kFloat32, pack_row, unpack_row};

}  // namespace flashsparse::lossless::portable
