// SPDX-License-Identifier: Apache-2.0
#include "cpu/decode.h"

#include <algorithm>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/float16.h"
#include "common/parallel.h"
#include "cpu/scalar.h"

namespace flashsparse::cpu {
namespace {

// The positions of a sequence that its query attends to.
struct Range {
  int64_t begin, end;
};

Range range_of(const DecodeCall& call, int64_t sequence) {
  const int64_t end = call.lengths ? call.lengths[sequence] : call.positions;
  return {call.window > 0 ? std::max<int64_t>(end - call.window, 0) : 0, end};
}

// The error in lengths or table, or nothing.
std::string validate(const DecodeCall& call) {
  for (int64_t sequence = 0; sequence < call.sequences; ++sequence) {
    const Range range = range_of(call, sequence);
    const std::string name = "sequence " + std::to_string(sequence);
    if (range.end < 0 || range.end > call.positions) {
      return name + " has length " + std::to_string(range.end) + ", there are " +
             std::to_string(call.positions) + " positions";
    }
    if (!call.table || range.begin == range.end) continue;
    for (int64_t i = range.begin / call.page_size; i <= (range.end - 1) / call.page_size; ++i) {
      const int32_t page = call.table[sequence * call.table_stride + i];
      if (page < 0 || page >= call.pages) {
        return "entry " + std::to_string(i) + " of " + name + " in block_table is block " +
               std::to_string(page) + ", the cache has " + std::to_string(call.pages);
      }
    }
  }
  return {};
}

void attend(const DecodeCall& call, int64_t sequence, int64_t kv_head) {
  const int64_t heads = call.group, bytes = call.codes ? 1 : bytes_of(call.dtype);
  const Range range = range_of(call, sequence);

  // Pointers to the rows of the positions to attend to.
  thread_local std::vector<const void*> keys, values;
  keys.clear();
  values.clear();
  const uint8_t* const mask = call.mask ? call.mask + sequence * call.mask_stride : nullptr;
  const auto row = [&](const void* cache, const DecodeCall::Strides& strides, int64_t page,
                       int64_t position) {
    const int64_t element =
        page * strides.page + kv_head * strides.head + position * strides.position;
    return static_cast<const char*>(cache) + element * bytes;
  };
  for (int64_t p = range.begin; p < range.end; ++p) {
    if (mask && !mask[p]) continue;
    const int64_t entry = sequence * call.table_stride + p / call.page_size;
    const int64_t page = call.table ? call.table[entry] : sequence;
    const int64_t in_page = call.table ? p % call.page_size : p;
    keys.push_back(row(call.key, call.key_strides, page, in_page));
    values.push_back(row(call.value, call.value_strides, page, in_page));
  }

  thread_local AlignedBuffer buffer;
  float* const query = buffer.get<float>((2 * call.head_dim + 1) * heads + decode_scratch(heads));
  const int64_t first_head = kv_head * heads;
  const float scale = call.scale * call.key_scale.of(kv_head);
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t from = sequence * call.query_sequence + (first_head + head) * call.query_head;
    for (int d = 0; d < call.head_dim; ++d) {
      query[head * call.head_dim + d] = load(call.query, from + d, call.dtype) * scale;
    }
  }
  DecodeRow task;
  task.heads = static_cast<int>(heads);
  task.head_dim = call.head_dim;
  task.dtype = call.dtype;
  task.codes = call.codes;
  task.value_scale = call.value_scale.of(kv_head);
  task.query = query;
  task.keys = keys.data();
  task.values = values.data();
  task.positions = static_cast<int64_t>(keys.size());
  task.softcap = call.softcap;
  task.phi = call.phi ? call.phi + first_head : nullptr;
  task.low = call.low;
  task.high = call.high;
  task.out = query + heads * call.head_dim;
  float* const sinks = task.out + heads * call.head_dim;
  for (int64_t head = 0; call.sinks && head < heads; ++head) {
    sinks[head] = load(call.sinks, first_head + head, call.sinks_dtype);
  }
  task.sinks = call.sinks ? sinks : nullptr;
  task.scratch = sinks + heads;
  const int64_t out = sequence * call.kv_heads * heads + first_head;
  task.recomputed = call.recomputed + out;
  kernels().decode(task);
  for (int64_t i = 0; i < heads * call.head_dim; ++i) {
    store(call.out, out * call.head_dim + i, task.out[i], call.dtype);
  }
}

}  // namespace

std::string decode(const DecodeCall& call) {
  kernels();  // selected before any thread starts
  const std::string error = validate(call);
  if (!error.empty()) return error;
  parallel_chunks(call.sequences * call.kv_heads,
                  [&](int64_t i) { attend(call, i / call.kv_heads, i % call.kv_heads); });
  return {};
}

}  // namespace flashsparse::cpu
