// SPDX-License-Identifier: Apache-2.0
// The product with codes in panels whose rows choose their columns (formats/nm_rows.h).
#pragma once
#include <cstdint>

#include "cpu/panels.h"
#include "formats/value_type.h"

namespace flashsparse::nm_rows {

struct Weight {
  const uint8_t* values;
  const uint32_t* positions;
  const void* scales;  // null: unpack gives the codes as numbers
  ValueType type;
  Dtype scale_dtype;
  int64_t n, m;
  int64_t group;  // columns that share a scale; 0: all
};

// Positions of any origin are safe.
void linear(const Weight& weight, const cpu::LinearProblem& problem);

// Writes every element of the dense weight [rows, cols]: code x scale in fp32, rounded to `dtype`.
// Positions of any origin are safe.
void unpack(const Weight& packed, int64_t rows, int64_t cols, Dtype dtype, void* weight);

}  // namespace flashsparse::nm_rows
