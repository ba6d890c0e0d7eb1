// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "cpu/avx2/codes.h"

namespace {

template <int kWidth>
FS_VECTOR_INLINE void pick(const float* window, const Words& positions, Floats& to) {
  const auto lanes = reinterpret_cast<__m256i>(positions);
  // All but the last read no bits of a lane but those that they need.
  if constexpr (kWidth == 4) {
    to = _mm256_permutevar_ps(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(window)), lanes);
  } else if constexpr (kWidth == 16) {
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(window), lanes);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(window + 8), lanes);
    const __m256 in_high = _mm256_castsi256_ps(_mm256_slli_epi32(lanes, 28));
    to = _mm256_blendv_ps(low, high, in_high);
  } else {
    const __m256i low = _mm256_set1_epi32(kWidth - 1);
    to = _mm256_i32gather_ps(window, _mm256_and_si256(lanes, low), sizeof(float));
  }
}

}  // namespace

#include "cpu/cpu_panels/product.h"

namespace flashsparse::cpu_panels::avx2 {
const Kernels kKernels = kTable;
}
