// SPDX-License-Identifier: Apache-2.0
// bf16 weights by bf16 activations: vdpbf16ps multiplies a column pair of 16 rows at once and adds
// both products to an fp32 accumulator.
#include "cpu/avx512/linear.h"
#include "cpu/avx512/parts.h"

namespace {

struct BFloat16Dot {
  using Value = uint16_t;
  using Operands = Bits;
  static constexpr int kActivationBytes = 4;  // a pair of bf16

  static FS_INLINE Operands decode(uint32_t mask, const Value* values) {
    return expand(mask, values);
  }
  template <int kTokens>
  static FS_INLINE Floats add(Floats sum, Operands w, const char* x, int token) {
    const Bits activations = _mm512_set1_epi32(static_cast<int>(load_u32(x + 4 * token)));
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w),
                            reinterpret_cast<__m512bh>(activations));
  }
};

}  // namespace

namespace flashsparse::cpu::avx512 {
const LinearKernels kBFloat16Dot = linear_kernels<BFloat16Dot>(pack_bfloat16_activations);
}
