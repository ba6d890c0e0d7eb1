// SPDX-License-Identifier: Apache-2.0
// Interleaved bitmap on the CPU: packing, unpacking, validation and the product.
#pragma once
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "cpu/blocks.h"

namespace flashsparse::interleaved_bitmap {

struct Weight {  // see formats/interleaved_bitmap.h
  int64_t out_features, in_features;
  const uint32_t* masks;
  const void* values;  // of dtype, or int8
  const int64_t* panel_offsets;
  Dtype dtype;
  bool codes = false;             // values are int8_t
  const float* scales = nullptr;  // of rows, for products of int8 values
};

// Computes panel_offsets[panels + 1] of a dense weight[rows, cols] of int8, 16-bit or 32-bit
// values.
void count(const int8_t* codes, int64_t rows, int64_t cols, int64_t* panel_offsets);
void count(const uint16_t* weight, int64_t rows, int64_t cols, int64_t* panel_offsets);
void count(const uint32_t* weight, int64_t rows, int64_t cols, int64_t* panel_offsets);
// Fills masks and values (slack included) from a dense weight.
void pack(const int8_t* codes, int64_t rows, int64_t cols, const int64_t* panel_offsets,
          uint32_t* masks, int8_t* values);
void pack(const uint16_t* weight, int64_t rows, int64_t cols, const int64_t* panel_offsets,
          uint32_t* masks, uint16_t* values);
void pack(const uint32_t* weight, int64_t rows, int64_t cols, const int64_t* panel_offsets,
          uint32_t* masks, uint32_t* values);
// Checks tensors of any origin, with `num_values` values, so that no kernel accesses out of bounds:
// offsets ascend from 0 by the number of values in the masks of a panel, no mask keeps an element
// past the weight's edges, no int8 value is 0, and the slack follows the last value. Returns the
// first rule that is broken, or nothing.
std::string validate(const Weight& packed, int64_t num_values);
// Writes every element of weight[rows, cols]; int8 values times their scales.
void unpack(const Weight& packed, void* weight);
void unpack_codes(const Weight& packed, int8_t* codes);
// Blocks of 16 rows and `wide` columns, an even number, of a valid weight of 16-bit values, or of
// int8 values, which are marked (cpu/marked.h).
cpu::Blocks blocks_of(const Weight& packed, int64_t wide);

// y[tokens, out] = x[tokens, in] W^T + bias, as for cpu::LinearProblem. `bias` may be null.
void linear(const Weight& weight, const void* x, int64_t tokens, const void* bias, void* y,
            Dtype dtype);

}  // namespace flashsparse::interleaved_bitmap
