// SPDX-License-Identifier: Apache-2.0
// Copies a panel to shared memory: columns of x^T, values, and index.
//
//   stage   x        [columns of the panel, or those that the block of rows keeps][tokens]
//           values   [units][entries][32 rows]
//           index    [groups][entries], bytes
//           columns  [capacity], bytes: which columns of x to copy (packing); one panel ahead
#pragma once
#include "common/memory.cuh"
#include "common/registers.cuh"
#include "cuda/nm_spmm/linear_shape.h"

namespace flashsparse::nm_spmm {

// Source and destination of a panel, for one thread.
struct Panel {
  const char* x;  // this thread's tokens of the first column
  const float* values;
  uint32_t stage;
};

template <class Shape>
class Stager {
 public:
  __device__ __forceinline__ Stager(const Weight& weight, const Arguments& a, int token_tile,
                                    int row_tile, uint32_t shared)
      : weight_(weight), a_(a), shared_(shared) {
    const int row = row_tile * Shape::kRows, inside = row % kBlockRows;
    first_ = row / kBlockRows * weight.panels;  // below 2^31: a panel has at least 8 KB of values
    values_ = weight.values + (inside * weight.panel_entries + threadIdx.x * 4);
    index_ = weight.index + ((inside >> weight.group_shift) * weight.panel_entries);
    const int token = token_tile * Shape::kTokens + threadIdx.x % Shape::kColumnThreads * 4;
    xt_ = reinterpret_cast<const char*>(a.xt + token);
  }

  // Shared address of the panel's stage.
  __device__ __forceinline__ uint32_t stage_of(int panel) const {
    return shared_ + static_cast<uint32_t>(panel) % Shape::kStages * a_.stage.bytes;
  }

  __device__ __forceinline__ Panel panel(int number) const {
    const uint64_t column = static_cast<uint32_t>(number * weight_.panel_columns);
    const int64_t floats = int64_t{first_ + number} * (weight_.panel_entries * kBlockRows);
    return {keep(xt_ + column * a_.column_bytes), keep(values_ + floats), stage_of(number)};
  }

  // Starts the copies of a panel.
  __device__ __forceinline__ void copy(int number) const {
    const Panel from = panel(number);
    copy_index(number);
    if constexpr (Shape::kPacking) {
      FS_NO_UNROLL
      for (int chunk = 0, count = chunks(); chunk < count; ++chunk) {
        copy_values(from, chunk);
        copy_listed(from, chunk);
      }
    } else {
      copy_columns(from);
      FS_UNROLL_BY(4)
      for (int chunk = 0, count = chunks(); chunk < count; ++chunk) copy_values(from, chunk);
    }
  }

  // The number of parts, one for each chunk of entries, in which a panel can be copied with
  // packing.
  __device__ __forceinline__ int chunks() const { return weight_.panel_entries / kChunk; }

  // Copies the values of four entries, 16 bytes of each row.
  __device__ __forceinline__ void copy_values(const Panel& panel, int chunk) const {
    const uint32_t to = panel.stage + a_.stage.values + (chunk * Shape::kRows + threadIdx.x) * 16;
    const float* const from = panel.values + chunk * Shape::kRows * 4;
    FS_UNROLL
    for (int i = 0; i < Shape::kRows; i += Shape::kThreads) {
      if (Shape::kRows % Shape::kThreads == 0 || i + static_cast<int>(threadIdx.x) < Shape::kRows) {
        copy_async<16>(to + i * 16, from + i * 4, true);
      }
    }
  }

  // Copies the chunk's share of the columns of x that are in the list, four at a time.
  __device__ __forceinline__ void copy_listed(const Panel& panel, int chunk) const {
    constexpr uint32_t kStep = Shape::kPartColumns * 4;
    const uint32_t own = threadIdx.x / Shape::kColumnThreads * 4, end = weight_.capacity;
    FS_NO_UNROLL
    for (uint32_t place = chunk * kStep + own; place < end; place += chunks() * kStep) {
      const uint32_t list = load_shared<uint32_t>(panel.stage + a_.stage.columns + place);
      const uint32_t to = keep(panel.stage + place * Shape::kXBytes + token_bytes());
      const uint32_t column_bytes = keep(a_.column_bytes);
      FS_UNROLL
      for (int i = 0; i < 4; ++i) {
        const uint32_t column = list >> 8 * i & 0xff;
        // keep(): otherwise the address is computed by predicated instructions.
        const char* const from = keep(panel.x + uint64_t{column} * column_bytes);
        if (column == 0 && (place > 0 || i > 0)) continue;  // end of the list
        copy_async<16>(to + i * Shape::kXBytes, from, true);
      }
    }
  }

  __device__ __forceinline__ void copy_index(int number) const {
    const int stride = (kBlockRows >> weight_.group_shift) * weight_.panel_entries;
    const int bytes = (((Shape::kRows - 1) >> weight_.group_shift) + 1) * weight_.panel_entries;
    copy_bytes(stage_of(number) + a_.stage.index, index_ + int64_t{first_ + number} * stride,
               bytes);
  }

  // Starts to copy the list of columns of a panel to its stage.
  __device__ __forceinline__ void copy_list(int number) const {
    copy_bytes(stage_of(number) + a_.stage.columns,
               weight_.columns + int64_t{first_ + number} * weight_.capacity, weight_.capacity);
  }

 private:
  // Offset of the thread's tokens in a column of a stage.
  __device__ __forceinline__ static uint32_t token_bytes() {
    return threadIdx.x % Shape::kColumnThreads * 16;
  }

  // Copies all columns of x.
  __device__ __forceinline__ void copy_columns(const Panel& panel) const {
    const uint32_t first = threadIdx.x / Shape::kColumnThreads;
    uint32_t to = panel.stage + first * Shape::kXBytes + token_bytes();
    const char* from = panel.x + uint64_t{first} * a_.column_bytes;
    const uint64_t step = uint64_t{Shape::kPartColumns} * a_.column_bytes;
    FS_UNROLL_BY(4)
    for (int column = first; column < weight_.panel_columns; column += Shape::kPartColumns) {
      copy_async<16>(to, from, true);
      to += Shape::kPartColumns * Shape::kXBytes;
      from += step;
    }
  }

  // `bytes` is a multiple of 4.
  __device__ __forceinline__ static void copy_bytes(uint32_t to, const uint8_t* from, int bytes) {
    FS_NO_UNROLL
    for (int i = threadIdx.x * 4; i < bytes; i += Shape::kThreads * 4) {
      copy_async<4>(to + i, from + i, true);
    }
  }

  const Weight& weight_;
  const Arguments& a_;
  const uint32_t shared_;
  int first_;             // first panel of the block of rows
  const float* values_;   // this thread's values of panel 0
  const uint8_t* index_;  // the tile's index of panel 0
  const char* xt_;        // this thread's tokens of column 0
};

}  // namespace flashsparse::nm_spmm
