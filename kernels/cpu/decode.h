// SPDX-License-Identifier: Apache-2.0
// Decode attention on the CPU: one new token per sequence over its cached keys and values.
#pragma once
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "cpu/kernels.h"

namespace flashsparse::cpu {

struct DecodeCall {
  struct Strides {  // in elements
    int64_t page, head, position;
  };
  struct Scale {  // of codes: of each kv head or of all; null: 1
    const float* numbers;
    bool of_heads;

    float of(int64_t kv_head) const { return numbers ? numbers[of_heads ? kv_head : 0] : 1; }
  };

  int64_t sequences, kv_heads, group, positions;  // group: query heads of a kv head
  int head_dim;                                   // a multiple of 16
  Dtype dtype;                                    // of query and out, and of key and value
  const void* query;
  int64_t query_sequence, query_head;  // strides of it, in elements
  const void *key, *value;
  Strides key_strides, value_strides;
  bool codes;  // key and value are e4m3 codes
  Scale key_scale, value_scale;
  const int32_t*
      table;  // rows table_stride apart: the pages of a sequence; or null: its own number
  int64_t table_stride, pages, page_size;
  const int32_t* lengths;  // [sequences], or null: all `positions`
  const uint8_t* mask;     // rows mask_stride apart, zero where a position is masked, or null
  int64_t mask_stride, window;
  float scale, softcap;  // softcap 0: none
  const float* phi;      // [kv_heads * group], or null
  const void* sinks;     // [kv_heads * group] in sinks_dtype, or null
  Dtype sinks_dtype;
  float low, high;
  void* out;            // [sequences, kv_heads * group, head_dim]
  int32_t* recomputed;  // [sequences, kv_heads * group]
};

// One thread for each sequence and kv head. Returns the error in lengths or table, or nothing.
std::string decode(const DecodeCall& call);

}  // namespace flashsparse::cpu
