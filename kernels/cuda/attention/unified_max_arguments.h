// SPDX-License-Identifier: Apache-2.0
// Arguments of the decode kernel, all of them device memory.
#pragma once
#include <cstdint>

namespace flashsparse::unified_max {

struct Strides {  // in chunks of 16 bytes
  uint32_t page, head, position;
};

// From q . k to the base-2 logarithm of a term. Divisions are done on the host.
struct Scaling {
  float factor, inverse;  // scale * log2(e), and 1 / that
  float cap_factor, cap;  // 2 * factor / softcap and softcap / scale; cap 0: none

  Scaling() = default;
  Scaling(double scale, double softcap) {
    constexpr double kLog2e = 1.4426950408889634;
    factor = static_cast<float>(scale * kLog2e);
    inverse = static_cast<float>(1 / (scale * kLog2e));
    cap_factor = softcap > 0 ? static_cast<float>(2 * scale * kLog2e / softcap) : 0;
    cap = static_cast<float>(softcap / scale);
  }
};

struct DecodeArguments {
  const uint16_t* query;               // 4-byte aligned: element d of a head is at
  int64_t query_sequence, query_head;  // sequence * query_sequence + head * query_head + d

  // Position p of a sequence is in its page p / (16 * page_tiles), whose number is in `table`.
  // Without a table a sequence is one page, with the number of the sequence. Rows are 16-byte
  // aligned.
  const void *key, *value;
  Strides key_strides, value_strides;
  const int32_t* table;  // rows are table_stride apart; or null
  int table_stride;
  uint32_t pages, page_tiles;

  const int32_t* lengths;  // [sequences], or null: all have `positions`
  int positions;           // capacity of a sequence: longer lengths are clamped to it
  const uint8_t* mask;     // [sequences, mask_stride], zero where a position is masked, or null
  int64_t mask_stride;
  int window;  // only the last `window` positions are attended to; 0: all

  int kv_heads, group;  // group: query heads of a kv head
  Scaling scaling;
  const float* phi;  // [kv_heads * group], or null: online softmax
  float low, high;   // bounds of a warp's norm: outside of them it recomputes

  uint16_t* out;        // [sequences, kv_heads * group, head dim], 8-byte aligned
  int32_t* recomputed;  // [sequences, kv_heads * group]: parts that warps recomputed
  float* partials;      // DecodePlan::partial_floats() of any content, 16-byte aligned
  uint32_t* arrivals;   // [sequences * gridDim.y], all zero before and after

  // [kv_heads * group], scores that join the norm and have no value: float32, or in the dtype of
  // query; null for none.
  const void* sinks;
  bool sinks_float32;

  // What codes are multiplied by: of kv head h at h * scales_of_heads, which is 1 or 0. Only for a
  // kernel of codes; null: 1.
  const float *key_scale, *value_scale;
  int key_scales_of_heads, value_scales_of_heads;
};

}  // namespace flashsparse::unified_max
