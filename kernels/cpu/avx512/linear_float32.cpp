// SPDX-License-Identifier: Apache-2.0
// Weights converted to fp32, by fp32 activations: products of 16-bit weights are exact before they
// are added, so fp32 activations keep all their bits.
#include "cpu/avx512/linear.h"
#include "cpu/avx512/parts.h"

namespace {

struct Float32Pair {
  Floats even, odd;
};

// Multiplies both columns of a pair.
struct PairProduct {
  using Operands = Float32Pair;
  static constexpr int kActivationBytes = 8;  // two fp32

  template <int kTokens>
  static FS_INLINE Floats add(Floats sum, Operands w, const char* x, int token) {
    sum = _mm512_fmadd_ps(w.even, _mm512_set1_ps(load_f32(x + 4 * token)), sum);
    return _mm512_fmadd_ps(w.odd, _mm512_set1_ps(load_f32(x + 4 * (kTokens + token))), sum);
  }
};

template <Floats (*kEven)(Bits), Floats (*kOdd)(Bits)>
struct Widened : PairProduct {
  using Value = uint16_t;

  static FS_INLINE Operands decode(uint32_t mask, const Value* values) {
    const Bits pair = expand(mask, values);
    return {kEven(pair), kOdd(pair)};
  }
};

struct Int8 : PairProduct {
  using Value = int8_t;

  static FS_INLINE Operands decode(uint32_t mask, const Value* values) {
    const Bits pair = expand_codes(mask, values);
    return {even_integer(pair), odd_integer(pair)};
  }
};

// A mask word of fp32 values takes two registers of 8 rows x 2 columns; its columns are gathered
// from both.
struct Float32 : PairProduct {
  using Value = uint32_t;

  static FS_INLINE Operands decode(uint32_t mask, const Value* values) {
    const Bits low = expand32(mask & 0xffff, values);
    const Bits high = expand32(mask >> 16, values + __builtin_popcount(mask & 0xffff));
    const Bits even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const Bits odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return {_mm512_castsi512_ps(_mm512_permutex2var_epi32(low, even, high)),
            _mm512_castsi512_ps(_mm512_permutex2var_epi32(low, odd, high))};
  }
};

}  // namespace

namespace flashsparse::cpu::avx512 {
const LinearKernels kBFloat16Float32 =
    linear_kernels<Widened<even_bfloat16, odd_bfloat16>>(pack_float32_activations);
const LinearKernels kFloat16Float32 =
    linear_kernels<Widened<even_float16, odd_float16>>(pack_float32_activations);
const LinearKernels kFloat32 = linear_kernels<Float32>(pack_float32_activations);
const LinearKernels kInt8Float32 = linear_kernels<Int8>(pack_float32_activations);
}  // namespace flashsparse::cpu::avx512
