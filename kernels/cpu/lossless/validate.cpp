// SPDX-License-Identifier: Apache-2.0
// Validates lossless tensors of any origin.
#include <atomic>
#include <string>

#include "common/parallel.h"
#include "cpu/first_bad.h"
#include "cpu/lossless/kernels.h"
#include "cpu/lossless/lossless.h"

namespace flashsparse::lossless {
namespace {

struct Element {
  uint32_t byte, code;
};

Element element_of(const uint8_t* row, int64_t col) {
  const uint8_t* chunk = row + col / kChunkColumns * kChunkBytes;
  const int64_t j = col % kChunkColumns;
  return {chunk[j], chunk[kChunkColumns + j % kChunkCodes] >> (j < kChunkCodes ? 0 : 4) & 0xfu};
}

// Nonzeros of a row among its codes, or -1 where an element without a code is no zero, or one past
// the last column is no +0.
int64_t count_codes(const uint8_t* row, int64_t cols) {
  int64_t kept = 0;
  bool whole = true;
  for (int64_t first = 0; first < cols; first += kChunkColumns, row += kChunkBytes) {
    int count = 0, bad = 0;
    for (int half = 0; half < 2; ++half) {
      for (int j = 0; j < kChunkCodes; ++j) {
        const int code = row[kChunkColumns + j] >> 4 * half & 0xf;
        count += code != 0;
        bad += code == 0 && (row[half * kChunkCodes + j] & 0x7f) != 0;
      }
    }
    kept += count;
    whole = whole && bad == 0;
    for (int64_t j = cols - first; j < kChunkColumns; ++j) {
      const Element past = element_of(row, j);
      whole = whole && past.byte == 0 && past.code == 0;
    }
  }
  return whole ? kept : -1;
}

// Nonzeros of a row, or the first rule that it breaks. Offsets are safe.
Validation judge_row(const Packed& packed, int64_t row) {
  if (packed.bases[row] > kMostBase) {
    return {0, "weight_base of row " + std::to_string(row) + " is " +
                   std::to_string(packed.bases[row]) + ", and with more than " +
                   std::to_string(kMostBase) + " codes would be infinities or NaN"};
  }
  const uint8_t* bytes = packed.bytes + row * row_bytes(packed.cols);
  Validation result;
  result.nonzeros = count_codes(bytes, packed.cols);
  if (result.nonzeros < 0) {
    return {0, "weight_packed of row " + std::to_string(row) +
                   " has a fraction without a code, or something past its last column"};
  }
  int64_t previous = -1;
  for (int32_t i = packed.offsets[row]; i < packed.offsets[row + 1]; ++i) {
    const int64_t col = packed.columns[i];
    const auto broken = [&](const char* rule) -> Validation {
      return {0, "weight_exception_columns[" + std::to_string(i) + "] of row " +
                     std::to_string(row) + " is " + std::to_string(col) + rule};
    };
    if (col < 0 || col >= packed.cols) return broken(", outside of the weight");
    if (col <= previous) return broken(", and must be more than the one before");
    const Element element = element_of(bytes, col);
    if (element.byte || element.code) {
      return broken(", where weight_packed has a value, too: it would count twice");
    }
    result.nonzeros += (packed.exceptions[i] & 0x7fff) != 0;
    previous = col;
  }
  return result;
}

}  // namespace

bool offsets_are_safe(const Packed& packed, int64_t num_exceptions) {
  bool safe = packed.offsets[0] == 0 && packed.offsets[packed.rows] <= num_exceptions;
  for (int64_t row = 0; row < packed.rows; ++row) {
    safe &= packed.offsets[row] <= packed.offsets[row + 1];
  }
  return safe;
}

Validation validate(const Packed& packed, int64_t num_exceptions) {
  if (!offsets_are_safe(packed, num_exceptions) || packed.offsets[packed.rows] != num_exceptions) {
    return {0, "weight_exception_rows must rise from 0 to the " + std::to_string(num_exceptions) +
                   " exceptions that there are"};
  }
  cpu::FirstBad bad;
  std::atomic<int64_t> nonzeros{0};
  parallel_chunks(packed.rows, [&](int64_t row) {
    const Validation found = judge_row(packed, row);
    if (!found.error.empty()) return bad.report(row);
    nonzeros += found.nonzeros;
  });
  if (!bad.none()) return judge_row(packed, bad.index());
  return {nonzeros.load(), {}};
}

}  // namespace flashsparse::lossless
