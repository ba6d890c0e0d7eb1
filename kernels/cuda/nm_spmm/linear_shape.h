// SPDX-License-Identifier: Apache-2.0
// What the kernel is compiled for, and its arguments.
#pragma once
#include <cstdint>

#include "common/device.cuh"
#include "cuda/nm_spmm/linear_plan.h"

namespace flashsparse::nm_spmm {

template <int kTokens_, int kRows_,  // of a block: m_s, n_s
          int kThreadTokens_,        // m_t: quads of tokens that are a warp's width apart
          int kThreadRows_,          // n_t: consecutive rows, of one group
          int kTokenLanes_,          // lanes of a warp along tokens; the others are along rows
          int kStages_, bool kPacking_, int kBlocks_>
struct Shape {
  static constexpr int kTokens = kTokens_, kRows = kRows_;
  static constexpr int kThreadTokens = kThreadTokens_, kThreadRows = kThreadRows_;
  static constexpr int kTokenLanes = kTokenLanes_, kRowLanes = 32 / kTokenLanes;
  static constexpr int kWarpTokens = kTokenLanes * kThreadTokens;  // m_r
  static constexpr int kWarpRows = kRowLanes * kThreadRows;        // n_r
  static constexpr int kThreads = kTokens * kRows / (kThreadTokens * kThreadRows);
  static constexpr int kStages = kStages_, kBlocks = kBlocks_;
  static constexpr bool kPacking = kPacking_, kPipelined = kStages > 1;
  static constexpr int kTokenQuads = kThreadTokens / 4, kRowQuads = kThreadRows / 4;
  static constexpr uint32_t kXBytes = kTokens * sizeof(float);      // a column of x
  static constexpr uint32_t kRowBytes = kUnitRows * sizeof(float);  // an entry's values
  // A column is copied by kColumnThreads threads; kPartColumns columns are copied at a time.
  static constexpr int kColumnThreads = kTokens / 4;
  static constexpr int kPartColumns = kThreads / kColumnThreads;
};

struct Weight {
  const float* values;     // [blocks][panels][units][entries][32]
  const uint8_t* index;    // [blocks][panels][groups][entries]: D, or its packed form
  const uint8_t* columns;  // [blocks][panels][capacity]
  int group_shift;         // log2 of the vector length
  int panels, panel_columns, panel_entries;
  int capacity;
};

inline Weight weight_of(const Layout& layout, int64_t cols, const void* values, const void* index,
                        const void* columns) {
  int shift = 0;
  while (1 << shift < layout.vector_length) ++shift;
  return {static_cast<const float*>(values),
          static_cast<const uint8_t*>(index),
          static_cast<const uint8_t*>(columns),
          shift,
          static_cast<int>(layout.panels(cols)),
          layout.columns,
          layout.entries,
          layout.capacity};
}

// y [tokens, rows] = x [tokens, cols] times the transposed weight, plus bias [rows] or nothing.
struct Arguments {
  const float* xt;        // [columns of all panels][whole tiles], zero past cols and tokens
  uint32_t column_bytes;  // of a column of xt
  const float* bias;      // or null
  float* y;
  float* partials;     // workspace: Plan::partial_floats() of any content, 16-byte aligned
  uint32_t* arrivals;  // arrival counters, one for each tile, all zero before and after
  int rows, tokens;
  int token_tiles, row_tiles;
  Stage stage;
};

}  // namespace flashsparse::nm_spmm
