// SPDX-License-Identifier: Apache-2.0
// nm_vector on the CPU: packing, validation, unpacking. Values of a weight are 16 or 32 bits wide
// and travel as bits: Value is uint16_t or uint32_t.
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
  Dtype dtype;         // of the weight
  const void* values;  // [rows][kept], bits of the dtype; or codes, [rows][code_bytes(type, kept)]
  const uint8_t* index;  // [groups][index_bytes]
  ValueType type;
  const void* scales;  // of codes: [rows][groups of columns]; null: codes are numbers
  Dtype scale_dtype;
  int64_t group;  // columns of a row that share a scale; 0: all
};

// Fills `values` and `index` from weight[rows, cols]. Returns the first place that breaks the
// pattern, in words, or nothing.
template <typename Value>
std::string pack(const Value* weight, int64_t rows, int64_t cols, const Pattern& pattern,
                 Value* values, uint8_t* index);

struct Verdict {
  std::string error;  // the first rule that is broken, or nothing
  int64_t nonzeros = 0;
};

// Proves that no kernel leaves its bounds on tensors of any origin, and counts the nonzeros:
// positions lie in their window and ascend, what lies beyond the weight's edge is zero, and no code
// is NaN. Scales are not looked at.
Verdict validate(const Packed& packed);

// Writes weight[first, first + count), dense rows: code x scale in fp32, rounded. Positions of any
// origin are safe: those beyond the weight's edge are skipped. `first` is a multiple of the
// pattern's length.
void unpack(const Packed& packed, int64_t first, int64_t count, void* weight);

// Absolute columns of a group's entries, ascending where the tensors are valid; of the last window
// those beyond the edge, too.
void read_columns(const Pattern& pattern, int64_t cols, const uint8_t* index, int32_t* columns);

}  // namespace flashsparse::nm_vector
