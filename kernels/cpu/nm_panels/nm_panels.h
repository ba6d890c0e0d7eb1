// SPDX-License-Identifier: Apache-2.0
// The product with a weight in panels that share their columns (formats/nm_panels.h).
#pragma once
#include <cstdint>

#include "cpu/panels.h"

namespace flashsparse::nm_panels {

struct Weight {
  const void* values;  // in problem.weight_dtype
  const int32_t* columns;
  int64_t kept;          // entries of a row
  int64_t group_panels;  // panels that share their columns
};

// Columns must lie in [0, in_features].
void linear(const Weight& weight, const cpu::LinearProblem& problem);

// Writes every element of the dense weight [rows, cols], values of `bytes` bytes each. Columns of
// any origin are safe.
void unpack(const Weight& packed, int64_t rows, int64_t cols, int64_t bytes, void* weight);

}  // namespace flashsparse::nm_panels
