// SPDX-License-Identifier: Apache-2.0
#include "common/parallel.h"
#include "cpu/lossless/kernels.h"
#include "cpu/lossless/lossless.h"

namespace flashsparse::lossless {
namespace {

constexpr int64_t kChunkRows = 16;  // of a thread's chunk of work

template <typename Body>
void for_each_row(int64_t rows, const Body& body) {
  parallel_chunks((rows + kChunkRows - 1) / kChunkRows, [&](int64_t index) {
    const int64_t end = rows < (index + 1) * kChunkRows ? rows : (index + 1) * kChunkRows;
    for (int64_t row = index * kChunkRows; row < end; ++row) body(row);
  });
}

// Elements by exponent; of exponent 0 subnormal numbers alone.
struct Histogram {
  int64_t counts[256] = {};

  Histogram(const uint16_t* row, int64_t cols) {
    // Four of them: neighbours often have one exponent, and would wait for each other's count.
    uint32_t parts[4][256] = {};
    int64_t col = 0, zeros = 0;
    for (; col + 4 <= cols; col += 4) {
      for (int i = 0; i < 4; ++i) ++parts[i][exponent_of(row[col + i])];
    }
    for (; col < cols; ++col) ++parts[0][exponent_of(row[col])];
    for (int e = 0; e < 256; ++e) {
      counts[e] = int64_t{parts[0][e]} + parts[1][e] + parts[2][e] + parts[3][e];
    }
    if (counts[0]) {
      for (col = 0; col < cols; ++col) zeros += (row[col] & 0x7fff) == 0;
    }
    counts[0] -= zeros;
  }
};

struct Window {
  uint8_t base = 0;
  int64_t exceptions = 0;
};

Window choose(const Histogram& histogram) {
  int64_t all = 0, inside = 0, most = 0;
  for (const int64_t count : histogram.counts) all += count;
  for (int e = 1; e <= kMostCode; ++e) inside += histogram.counts[e];
  Window window;
  most = inside;
  for (int base = 1; base <= kMostBase; ++base) {
    inside += histogram.counts[base + kMostCode] - histogram.counts[base];
    if (inside > most) {
      most = inside;
      window.base = static_cast<uint8_t>(base);
    }
  }
  window.exceptions = all - most;
  return window;
}

}  // namespace

void choose_bases(const uint16_t* weight, int64_t rows, int64_t cols, uint8_t* bases,
                  int64_t* offsets) {
  for_each_row(rows, [&](int64_t row) {
    const Window window = choose(Histogram(weight + row * cols, cols));
    bases[row] = window.base;
    offsets[row + 1] = window.exceptions;
  });
  offsets[0] = 0;
  for (int64_t row = 0; row < rows; ++row) offsets[row + 1] += offsets[row];
}

void pack(const uint16_t* weight, int64_t rows, int64_t cols, const uint8_t* bases,
          const int32_t* offsets, uint8_t* bytes, int32_t* columns, uint16_t* exceptions) {
  const Kernels& own = kernels();  // selected before any thread starts
  for_each_row(rows, [&](int64_t row) {
    const uint16_t* from = weight + row * cols;
    own.pack_row(from, cols, bases[row], bytes + row * row_bytes(cols));
    int32_t place = offsets[row];
    for (int64_t col = 0; col < cols && place < offsets[row + 1]; ++col) {
      if (!is_exception(from[col], bases[row])) continue;
      columns[place] = static_cast<int32_t>(col);
      exceptions[place++] = from[col];
    }
  });
}

void read_row(const Packed& packed, int64_t row, uint16_t* out) {
  kernels().unpack_row(packed.bytes + row * row_bytes(packed.cols), packed.cols, packed.bases[row],
                       out);
  for (int32_t i = packed.offsets[row]; i < packed.offsets[row + 1]; ++i) {
    if (static_cast<uint32_t>(packed.columns[i]) < packed.cols) {
      out[packed.columns[i]] = packed.exceptions[i];
    }
  }
}

void unpack(const Packed& packed, uint16_t* weight) {
  kernels();  // selected before any thread starts
  for_each_row(packed.rows,
               [&](int64_t row) { read_row(packed, row, weight + row * packed.cols); });
}

void read_rows(const Packed& packed, const int64_t* ids, int64_t count, uint16_t* out) {
  kernels();  // selected before any thread starts
  for_each_row(count, [&](int64_t i) { read_row(packed, ids[i], out + i * packed.cols); });
}

}  // namespace flashsparse::lossless
