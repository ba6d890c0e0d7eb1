// SPDX-License-Identifier: Apache-2.0
// The inner kernels that only lossless needs, for each instruction set.
#pragma once
#include <cstdint>

#include "common/dtype.h"
#include "formats/lossless.h"

namespace flashsparse::lossless {

// Rows that are multiplied together.
inline constexpr int kRows = 2;

// How to multiply kRows rows by a block of tokens, in one arithmetic.
struct LinearKernels {
  int64_t activation_bytes;  // of one token and column, packed
  int block_tokens;          // the most tokens whose accumulators fit into registers

  // Packs a token's x[columns] in the order in which `multiply` takes it, up to a whole chunk with
  // zeros.
  void (*pack_activations)(const void* x, Dtype dtype, int64_t columns, void* packed);
  // sums[token][row] = rows * packed activations, in fp32, without exceptions. `packed` holds token
  // after token, `stride` bytes apart. A row's exponents are looked up in a table of 16, which
  // holds its base.
  void (*multiply)(const uint8_t* const (&rows)[kRows], const uint8_t (&bases)[kRows],
                   int64_t chunks, const void* packed, int64_t stride, int tokens, float* sums);
};

struct Kernels {
  const LinearKernels* bfloat16_dot;  // bf16 x: products of bf16 pairs; null if missing
  const LinearKernels* float32;       // any x: weights and activations converted to fp32

  // Packs one row of a weight; its exceptions become 0. `out` gets row_bytes(columns).
  void (*pack_row)(const uint16_t* row, int64_t columns, uint32_t base, uint8_t* out);
  // Writes the bits of one row, 0 in the place of exceptions.
  void (*unpack_row)(const uint8_t* row, int64_t columns, uint32_t base, uint16_t* out);
};

// The table for this machine (cpu/capability.h).
const Kernels& kernels();

namespace portable {
extern const Kernels kKernels;
}
#ifdef FLASHSPARSE_X86
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
#endif

}  // namespace flashsparse::lossless
