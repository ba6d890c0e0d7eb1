// SPDX-License-Identifier: Apache-2.0
// The product with a weight in panels that share their columns (formats/nm_panels.h).
#pragma once
#include <cstdint>

#include "cpu/panels.h"
#include "formats/value_type.h"

namespace flashsparse::nm_panels {

struct Weight {
  const void* values;
  const int32_t* columns;
  int64_t kept;          // entries of a row
  int64_t group_panels;  // panels that share their columns
  ValueType type;
  // Of codes:
  const void* scales;  // null: unpack gives the codes as numbers
  Dtype scale_dtype;
  int64_t group_entries;  // entries that share a scale; 0: all
};

// Columns must lie in [0, in_features]. Native values are of problem.weight_dtype.
void linear(const Weight& weight, const cpu::LinearProblem& problem);

// Writes every element of the dense weight [rows, cols]: native values bit for bit, codes times
// their scales in fp32, rounded to `dtype`. Columns of any origin are safe.
void unpack(const Weight& packed, int64_t rows, int64_t cols, Dtype dtype, void* weight);

}  // namespace flashsparse::nm_panels
