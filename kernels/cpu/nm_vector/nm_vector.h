// SPDX-License-Identifier: Apache-2.0
// nm_vector on the CPU: packing, validation, unpacking. Values are 16 or 32 bits wide and handled
// as bits: Value is uint16_t or uint32_t.
#pragma once
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "formats/nm_vector.h"
#include "formats/value_type.h"

namespace flashsparse::nm_vector {

struct Packed {
  Pattern pattern;
  int64_t rows, cols;
  Dtype dtype;           // of the weight
  const void* values;    // [rows][kept], of the dtype; or quantized, [rows][code_bytes(type, kept)]
  const uint8_t* index;  // [groups][index_bytes]
  ValueType type;
  const void* scales;  // of quantized values: [rows][groups of columns]; null: 1
  Dtype scale_dtype;
  int64_t group;  // columns of a row that share a scale; 0: all
};

// Fills `values` and `index` from weight[rows, cols]. Returns a message about the first place that
// breaks the pattern, or nothing.
template <typename Value>
std::string pack(const Value* weight, int64_t rows, int64_t cols, const Pattern& pattern,
                 Value* values, uint8_t* index);

struct Verdict {
  std::string error;  // the first rule that is broken, or nothing
  int64_t nonzeros = 0;
};

// Checks tensors of any origin, so that no kernel accesses out of bounds, and counts the nonzeros:
// positions are inside of their window and ascend, what is past the weight's edge is zero, and no
// quantized value is NaN. Scales are not checked.
Verdict validate(const Packed& packed);

// Writes weight[first, first + count), dense rows: quantized values times scales in fp32, rounded.
// Any positions are safe: those past the weight's edge are skipped. `first` is a multiple of the
// pattern's length.
void unpack(const Packed& packed, int64_t first, int64_t count, void* weight);

// The columns of a group's entries, ascending if the tensors are valid; in the last window they may
// be past the edge.
void read_columns(const Pattern& pattern, int64_t cols, const uint8_t* index, int32_t* columns);

}  // namespace flashsparse::nm_vector
