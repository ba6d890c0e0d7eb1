// SPDX-License-Identifier: Apache-2.0
// The inner kernels that exist once per instruction set, behind one table of function pointers.
// Everything around them (threads, token blocks, panels, edges) is written once, in plain C++.
#pragma once
#include <cstdint>

#include "cpu/dtype.h"

namespace flashsparse::cpu {

// 16 rows of an interleaved bitmap (formats/interleaved_bitmap.h): where its mask words and its
// values start. 32 values are readable wherever a mask word starts.
struct Panel {
  const uint32_t* masks;
  const uint16_t* values;
};

// How to multiply a panel by a block of tokens, in one arithmetic.
struct LinearKernels {
  static constexpr int kMostBlockTokens = 24;

  int64_t activation_bytes;  // of one token and column pair, packed
  int block_tokens;          // the most whose sums fit into registers

  // Packs column pairs [first, last) of `tokens` rows of x[tokens, in_features] so that one pair's
  // activations of all the tokens follow each other. Beyond in_features there are zeros.
  void (*pack_activations)(const void* x, Dtype dtype, int64_t in_features, int tokens,
                           int64_t first, int64_t last, void* packed);
  // sums[token][16 rows] = panel * packed activations, in fp32. `sums` starts on 64 bytes.
  void (*multiply)(const Panel& panel, int64_t pairs, const void* packed, int tokens, float* sums);
};

// The query heads of one kv head, and the rows of its cache that they look at (cpu/decode_row.h).
struct DecodeRow {
  int heads, head_dim;                      // head_dim a multiple of 16, kMostHeadDim at most
  Dtype dtype;                              // of keys and values
  const float* query;                       // [heads][head_dim], times the scale of scores
  const void *const *keys, *const *values;  // [positions] rows of head_dim
  int64_t positions;
  float softcap;        // 0: none
  const float* phi;     // [heads], or null
  float low, high;      // of a head's sum of terms, where it counts as sound
  float* out;           // [heads][head_dim]
  int32_t* recomputed;  // [heads]: 1 where phi was wrong, else 0
  float* scratch;       // decode_scratch(heads) of them
};
constexpr int kDecodeBlock = 32;  // positions that are widened at once
constexpr int kMostHeadDim = 256;
constexpr int64_t decode_scratch(int64_t heads) {
  return 2 * kDecodeBlock * kMostHeadDim + kDecodeBlock + 2 * heads;
}

struct Kernels {
  const char* name;
  const LinearKernels* bfloat16_dot;  // bf16 x, bf16 w: products of bf16 pairs; null where missing
  const LinearKernels* bfloat16_float32;  // bf16 w widened to fp32, any x
  const LinearKernels* float16_float32;   // fp16 w widened to fp32, any x

  // y[token * stride + row] = round(sums[token][row] + bias[row]) for rows < `rows`. `bias` has 16
  // entries.
  void (*store)(const float* sums, int tokens, const float* bias, int rows, void* y, int64_t stride,
                Dtype dtype);

  int64_t (*count_nonzeros)(const uint16_t* values, int64_t count);
  // Dense rows (at most 16, `stride` apart) to mask words and values; returns the end of the
  // values.
  uint16_t* (*pack_panel)(const uint16_t* weight, int64_t stride, int rows, int64_t cols,
                          uint32_t* masks, uint16_t* values);
  // The same from 16 rows of a tile in Tiled-CSL's location order (formats/tiled_csl.h).
  uint16_t* (*pack_tile_panel)(const uint16_t* tile, int rows, int cols, uint32_t* masks,
                               uint16_t* values);
  void (*unpack_panel)(const Panel& panel, int rows, int64_t cols, uint16_t* weight,
                       int64_t stride);
  // Adds the nonzeros of each 64 columns of a row to the entries of `nonzeros`.
  void (*count_tiles)(const uint16_t* row, int64_t cols, int64_t* nonzeros);
  // One Tiled-CSL tile, its words in canonical order, without padding; returns their number.
  int64_t (*pack_tile)(const uint16_t* weight, int64_t stride, int rows, int cols, uint32_t* words);

  void (*decode)(const DecodeRow& row);
};

// The table for this machine, chosen at the first call: the widest instruction set that the CPU
// has, or the one that FLASHSPARSE_CPU_CAPABILITY=avx512|avx2|portable names. Throws
// std::runtime_error for a name that is unknown or that this CPU or build lacks, so call it before
// any thread starts.
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
