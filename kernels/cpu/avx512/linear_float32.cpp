// SPDX-License-Identifier: Apache-2.0
// 16-bit weights widened to fp32 by fp32 activations: every product is exact before it is added, so
// fp32 activations keep all their bits.
#include "cpu/avx512/linear.h"
#include "cpu/avx512/parts.h"

namespace {

struct Float32Pair {
  Floats even, odd;
};

template <Floats (*kEven)(Bits), Floats (*kOdd)(Bits)>
struct Float32 {
  using Operands = Float32Pair;
  static constexpr int kActivationBytes = 8;  // two fp32

  static FS_INLINE Operands widen(Bits pair) { return {kEven(pair), kOdd(pair)}; }
  template <int kTokens>
  static FS_INLINE Floats add(Floats sum, Operands w, const char* x, int token) {
    sum = _mm512_fmadd_ps(w.even, _mm512_set1_ps(load_f32(x + 4 * token)), sum);
    return _mm512_fmadd_ps(w.odd, _mm512_set1_ps(load_f32(x + 4 * (kTokens + token))), sum);
  }
};

}  // namespace

namespace flashsparse::cpu::avx512 {
const LinearKernels kBFloat16Float32 =
    linear_kernels<Float32<even_bfloat16, odd_bfloat16>>(pack_float32_activations);
const LinearKernels kFloat16Float32 =
    linear_kernels<Float32<even_float16, odd_float16>>(pack_float32_activations);
}  // namespace flashsparse::cpu::avx512
