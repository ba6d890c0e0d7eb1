// SPDX-License-Identifier: Apache-2.0
// lossless on the CPU: packing, unpacking, validation and the product. Dense weights are row-major
// bits of bf16 [rows, cols].
#pragma once
#include <cstdint>
#include <string>

#include "common/dtype.h"

namespace flashsparse::lossless {

// The base of each row, and where its exceptions begin: offsets[rows + 1], of which offsets[0] = 0.
void choose_bases(const uint16_t* weight, int64_t rows, int64_t cols, uint8_t* bases,
                  int64_t* offsets);

// Fills bytes[rows][row_bytes(cols)], and the exceptions' columns and bits, with `bases` and
// `offsets` from choose_bases.
void pack(const uint16_t* weight, int64_t rows, int64_t cols, const uint8_t* bases,
          const int32_t* offsets, uint8_t* bytes, int32_t* columns, uint16_t* exceptions);

struct Packed {  // see formats/lossless.h; of any origin: only the number of exceptions is trusted
  const uint8_t* bytes;
  const uint8_t* bases;
  const int32_t* offsets;
  const int32_t* columns;
  const uint16_t* exceptions;
  int64_t rows, cols;
};

struct Validation {
  int64_t nonzeros = 0;
  std::string error;  // empty if the tensors are valid, else the first rule that they break
};

// Checks that `num_exceptions` exceptions are listed in order and inside of the weight, and that
// there is one meaning to every element: formats/lossless.h has the rules.
Validation validate(const Packed& packed, int64_t num_exceptions);

// Whether offsets rise from 0 to at most `num_exceptions`: what a reader has to know not to leave
// the list. Columns are compared with the weight's as they are read.
bool offsets_are_safe(const Packed& packed, int64_t num_exceptions);

// Writes every element of one row.
void read_row(const Packed& packed, int64_t row, uint16_t* out);
// Writes every element of weight[rows, cols], zeros included.
void unpack(const Packed& packed, uint16_t* weight);

// Writes rows `ids` of the weight to out[count, cols]; each is below `rows`.
void read_rows(const Packed& packed, const int64_t* ids, int64_t count, uint16_t* out);

// y[tokens, rows] = x[tokens, cols] W^T + bias, as for cpu::LinearProblem. `bias` may be null.
// Exceptions are multiplied in fp32, so that infinities and NaN of weights and of x give what they
// give in a dense product.
void linear(const Packed& packed, const void* x, int64_t tokens, const void* bias, void* y,
            Dtype dtype);

}  // namespace flashsparse::lossless
