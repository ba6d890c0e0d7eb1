// SPDX-License-Identifier: Apache-2.0
// Interleaved bitmap on the CPU: made from dense or Tiled-CSL weights, turned back, and multiplied.
#pragma once
#include <cstdint>

#include "cpu/dtype.h"

namespace flashsparse::interleaved_bitmap {

struct Weight {  // see formats/interleaved_bitmap.h
  int64_t out_features, in_features;
  const uint32_t* masks;
  const uint16_t* values;
  const int64_t* panel_offsets;
  Dtype dtype;  // of the values: kFloat16 or kBFloat16
};

// panel_offsets[panels + 1] of a dense weight[rows, cols].
void count(const uint16_t* weight, int64_t rows, int64_t cols, int64_t* panel_offsets);
// Fills masks and values (slack included) of a dense weight.
void pack(const uint16_t* weight, int64_t rows, int64_t cols, const int64_t* panel_offsets,
          uint32_t* masks, uint16_t* values);
// Writes every element of weight[rows, cols].
void unpack(const Weight& packed, uint16_t* weight);

// y[tokens, out] = x[tokens, in] W^T + bias. x, bias and y have one dtype, and it rules the
// arithmetic:
//   bf16 x, bf16 w   products of column pairs, sums in fp32 (vdpbf16ps where the CPU has it)
//   anything else    x and w widened to fp32, where they are exact, fused multiply-add
// The sum is rounded once, to the dtype of y, after the bias was added in fp32. `bias` may be null.
// The order of additions depends on the shapes alone: results are the same from run to run and for
// any number of threads. Whether an infinite or NaN activation meets a zero of the weight (and
// gives NaN, as in a dense product) is left open.
//
// Scratch: the activations of at most 512 tokens, packed, 2 bytes (bf16 by bf16) or 4 bytes each.
void linear(const Weight& weight, const void* x, int64_t tokens, const void* bias, void* y,
            Dtype dtype);

}  // namespace flashsparse::interleaved_bitmap
