// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "cpu/avx512/codes.h"

namespace {

template <int kWidth>
FS_VECTOR_INLINE void pick(const float* window, const Words& positions, Floats& to) {
  const auto lanes = reinterpret_cast<__m512i>(positions);
  // All but the last read no bits of a lane but those that they need.
  if constexpr (kWidth == 4) {
    to = _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(window)), lanes);
  } else if constexpr (kWidth == 16) {
    to = _mm512_permutexvar_ps(lanes, _mm512_loadu_ps(window));
  } else if constexpr (kWidth == 32) {
    to = _mm512_permutex2var_ps(_mm512_loadu_ps(window), lanes, _mm512_loadu_ps(window + 16));
  } else {
    const __m512i low = _mm512_set1_epi32(kWidth - 1);
    to = _mm512_i32gather_ps(_mm512_and_si512(lanes, low), window, sizeof(float));
  }
}

}  // namespace

#include "cpu/cpu_panels/product.h"

namespace flashsparse::cpu_panels::avx512 {
const Kernels kKernels = kTable;
}
