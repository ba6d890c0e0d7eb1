// SPDX-License-Identifier: Apache-2.0
// What the decode kernel is compiled for, and its arguments.
#pragma once
#include <cstdint>

#include "common/device.cuh"
#include "cuda/nm_gather/linear_plan.h"
#include "cuda/shared/divider.h"

namespace flashsparse::nm_gather {

template <int kTokens_,    // of y at most: 8, 16, 32 or 64
          int kUnitRows_,  // rows that a warp multiplies with one gather: 8, 16 or 32
          int kStages_,    // pairs of steps that a warp has in flight
          int kWarps_,     // compute warps at most
          ValueType kValues_ = ValueType::kNative>
struct Shape {
  static constexpr ValueType kValues = kValues_;
  static constexpr int kTokens = kTokens_, kUnitRows = kUnitRows_;
  static constexpr int kStages = kStages_, kWarps = kWarps_;
  static constexpr int kThreads = (kWarps + kStagingWarps) * 32;
  static constexpr int kPlanes = kTokens / 8;  // of x: 8 tokens each
  static constexpr int kTiles = kUnitRows < 32 ? 1 : 2;
  // Vectors of 16 bytes for a lane and a pair of steps.
  static constexpr int kVectors = kUnitRows * bits_of(kValues) / 128;
  // Vectors of the layout from one pair of a unit to the next.
  static constexpr int kPairVectors = kVectors * 32 + group_scale_bytes(kValues) / 16;
  // A stage holds the vectors of all lanes, one more with scales of groups, and the word of the
  // index that each lane needs.
  static constexpr int kStageVectors = kVectors + scaled_by_group(kValues);
  static constexpr uint32_t kIndexAt = kStageVectors * 32 * sizeof(uint4);
  static constexpr uint32_t kStageBytes = kIndexAt + 32 * sizeof(uint32_t);
  static constexpr uint32_t kRingBytes = kStages * kStageBytes;
  // Floats from one token's sums to the next in shared memory, padded to lie in different banks.
  static constexpr int kSumStride = kUnitRows + 4;
};

struct Weight {
  const uint4* values;    // [units][pairs][vectors of a pair][32]
  const uint32_t* index;  // [groups][pairs][8], 4 entries a word
  int group_units;        // units that share an index
  int pairs;              // of all columns
  int sections, section_pairs, section_columns;
  int panel_columns, panel_steps;
  const float* row_scales;  // [rows], of quantized values
};

inline Weight weight_of(const Layout& layout, int64_t cols, const Stored& stored) {
  return {static_cast<const uint4*>(stored.values),
          static_cast<const uint32_t*>(stored.index),
          layout.group_units,
          static_cast<int>(layout.pairs(cols)),
          static_cast<int>(layout.sections(cols)),
          layout.section_pairs(),
          layout.section_columns(),
          layout.panel_columns,
          layout.panel_steps,
          stored.row_scales};
}

// Fixed point for dividing pieces by the quads of a plane; exact, since both are below 2^13.
inline constexpr int kPerQuadBits = 26;
inline constexpr uint32_t kPerQuad = 1u << kPerQuadBits;

// y [tokens, rows] = x [tokens, cols] times the transposed weight, plus bias [rows] or nothing, all
// of one 16-bit dtype, accumulated in fp32.
struct Arguments {
  const uint16_t* x;      // 8-byte aligned; zero from cols up to x_stride
  int x_stride;           // elements from one row of x to the next, a multiple of 4
  const float* x_scales;  // [tokens] if x holds quantized values, else null
  const uint16_t* bias;   // or null
  uint16_t* y;            // 8-byte aligned
  float* partials;        // workspace: Plan::partial_floats() of any content, 16-byte aligned
  uint32_t* arrivals;     // arrival counters, one for a block of rows, all zero before and after
  int rows;               // of the weight
  int tokens;             // no more than the shape has
  int units;              // of rows
  int row_warps, depth_warps, chunk_sections, chunk_rows;  // of the plan
  Divider by_row_warps{1}, by_splits{1};
  uint32_t per_quad;  // kPerQuad / (chunk_rows / 4), rounded up
  uint32_t rings;     // offset of the rings in shared memory, after x
  uint32_t flag;      // offset of the block's flag in shared memory
};

}  // namespace flashsparse::nm_gather
