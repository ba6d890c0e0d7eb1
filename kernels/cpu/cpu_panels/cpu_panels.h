// SPDX-License-Identifier: Apache-2.0
// The products with a weight in nm_panels, in nm_rows and in hybrid_panels (formats/cpu_panels.h).
#pragma once
#include <cstdint>

#include "cpu/panels.h"
#include "formats/value_type.h"

namespace flashsparse::cpu_panels {

struct Weight {
  const void* values;
  ValueType type;
  int64_t kept;  // entries of a row; of hybrid_panels as if all were kept
  // Of codes:
  const void* scales = nullptr;  // null: unpack gives the codes as numbers
  Dtype scale_dtype = Dtype::kFloat32;
  int64_t group_entries = 0;  // entries that share a scale; 0: all
  // Of nm_panels:
  const int32_t* columns = nullptr;
  int64_t vector_panels = 1;  // panels that share their columns
  // Of nm_rows and hybrid_panels:
  const uint32_t* positions = nullptr;
  int64_t n = 1, m = 1;  // entries and columns of a window
  // Of hybrid_panels, whose n and m are 4:
  const uint8_t* kinds = nullptr;
  int64_t panels = 0;
};

// Columns must lie in [0, in_features], positions of any origin are safe. Native values are of
// problem.weight_dtype.
void linear(const Weight& weight, const cpu::LinearProblem& problem);

// Writes every element of the dense weight [rows, cols]: native values bit for bit, codes times
// their scales in fp32, rounded to `dtype`. Columns and positions of any origin are safe.
void unpack(const Weight& packed, int64_t rows, int64_t cols, Dtype dtype, void* weight);

}  // namespace flashsparse::cpu_panels
