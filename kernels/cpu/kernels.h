// SPDX-License-Identifier: Apache-2.0
// The inner kernels that all formats share, in one table of function pointers for each instruction
// set: products of panels, and decode attention. Everything around them (threads, token blocks,
// edges) is written once, in plain C++. What only one format needs is in a table of its own, in its
// folder.
#pragma once
#include <cstdint>

#include "common/dtype.h"
#include "formats/panel.h"

namespace flashsparse::cpu {

// Marks 8-bit values that are handled as 16-bit values: see cpu/marked.h.
inline constexpr uint16_t kMark = 0x100;

// Pointers to the mask words and the values of a panel (formats/panel.h).
struct Panel {
  const uint32_t* masks;
  const void* values;  // uint16_t, or uint32_t for fp32, or int8_t
};

// How to multiply a panel by a block of tokens, in one arithmetic.
struct LinearKernels {
  static constexpr int kMostBlockTokens = 24;

  int64_t activation_bytes;  // of one token and column pair, packed
  int block_tokens;          // the most tokens whose accumulators fit into registers

  // Packs column pairs [first, last) of `tokens` rows of x[tokens, in_features], so that the
  // activations of one pair are contiguous over tokens; zeros past in_features.
  void (*pack_activations)(const void* x, Dtype dtype, int64_t in_features, int tokens,
                           int64_t first, int64_t last, void* packed);
  // sums[token][16 rows] = panel * packed activations, in fp32. `sums` is 64-byte aligned.
  void (*multiply)(const Panel& panel, int64_t pairs, const void* packed, int tokens, float* sums);
};

// The query heads of one kv head, and the cached rows that they attend to (cpu/decode_row.h).
struct DecodeRow {
  int heads, head_dim;  // head_dim: a multiple of 16, kMostHeadDim at most
  Dtype dtype;          // of keys and values, if they are not e4m3 codes
  bool codes;
  float value_scale;                        // of the result
  const float* query;                       // [heads][head_dim], times the scale of scores
  const void *const *keys, *const *values;  // [positions] rows of head_dim
  int64_t positions;
  float softcap;        // 0: none
  const float* phi;     // [heads], or null
  const float* sinks;   // [heads] logits of nothing, which only join the norm, or null
  float low, high;      // bounds of a head's norm: outside of them it is recomputed
  float* out;           // [heads][head_dim]
  int32_t* recomputed;  // [heads]: 1 if phi was out of range, else 0
  float* scratch;       // decode_scratch(heads) floats
};
constexpr int kDecodeBlock = 32;  // positions that are converted to fp32 at once
constexpr int kMostHeadDim = 256;
constexpr int64_t decode_scratch(int64_t heads) {
  return 2 * kDecodeBlock * kMostHeadDim + kDecodeBlock + 2 * heads;
}

struct Kernels {
  const LinearKernels* bfloat16_dot;      // bf16 x, bf16 w: products of bf16 pairs; null if missing
  const LinearKernels* bfloat16_float32;  // bf16 w converted to fp32, any x
  const LinearKernels* float16_float32;   // fp16 w converted to fp32, any x
  const LinearKernels* float32;           // fp32 w, any x
  const LinearKernels* int8_bfloat16;     // bf16 x, int8 w converted to bf16; null if missing
  const LinearKernels* int8_float32;      // int8 w converted to fp32, any x

  // y[token * stride + row] = round(sums[token][row] + bias[row]) for rows < `rows`. `bias` has 16
  // entries.
  void (*store)(const float* sums, int tokens, const float* bias, int rows, void* y, int64_t stride,
                Dtype dtype);
  // How many of `count` 16-bit floats are neither +0 nor -0.
  int64_t (*count_nonzeros)(const uint16_t* values, int64_t count);

  void (*decode)(const DecodeRow& row);
};

// The table for this machine (cpu/capability.h). Throws as `capability` does.
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

}  // namespace flashsparse::cpu
