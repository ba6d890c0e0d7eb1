// SPDX-License-Identifier: Apache-2.0
#include "cpu/nm_panels/nm_panels.h"

#include <algorithm>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/entries.h"
#include "cpu/nm_panels/kernels.h"
#include "cpu/scalar.h"
#include "cpu/scalar_code.h"

namespace flashsparse::nm_panels {
namespace {

// x[tokens][cols] to fp32 [cols + 1][tokens]: the last row is the zero that entries beyond the
// weight's edge multiply.
void pack_columns(const Kernels& own, const char* x, Dtype dtype, int64_t cols, int tokens,
                  float* packed) {
  std::fill_n(packed + cols * tokens, tokens, 0.0f);
  if (tokens == 1) return own.widen(x, dtype, cols, packed);
  static thread_local AlignedBuffer buffer;
  float* row = buffer.get<float>(cols);
  for (int t = 0; t < tokens; ++t) {
    own.widen(x + t * cols * cpu::bytes_of(dtype), dtype, cols, row);
    for (int64_t c = 0; c < cols; ++c) packed[c * tokens + t] = row[c];
  }
}

// Panel number `number` of a weight whose native values are of `dtype`.
Panel panel_of(const Weight& weight, Dtype dtype, int64_t number) {
  const bool native = weight.type == ValueType::kNative;
  const int64_t entries = weight.group_entries ? weight.group_entries : weight.kept;
  const int64_t groups = (weight.kept + entries - 1) / entries;
  const int64_t bytes =
      native ? weight.kept * cpu::bytes_of(dtype) : code_bytes(weight.type, weight.kept);
  const int64_t scales = groups * cpu::bytes_of(weight.scale_dtype);
  const auto at = [&](const void* data, int64_t row_bytes) {
    return static_cast<const char*>(data) + number * kPanelRows * row_bytes;
  };
  return {at(weight.values, bytes),
          weight.columns + number / weight.group_panels * weight.kept,
          weight.kept,
          weight.scales ? at(weight.scales, scales) : nullptr,
          entries,
          weight.scale_dtype};
}

}  // namespace

void linear(const Weight& weight, const cpu::LinearProblem& problem) {
  const Kernels& own = kernels();
  const int64_t cols = problem.in_features;
  cpu::multiply_entries(
      problem, own.block_tokens, cols + 1, 0,
      [&](const char* x, int tokens, float* packed) {
        pack_columns(own, x, problem.dtype, cols, tokens, packed);
      },
      [&](int64_t number, const float* x, int tokens, float* sums) {
        const Panel panel = panel_of(weight, problem.weight_dtype, number);
        own.multiply(panel, weight.type, problem.weight_dtype, x, tokens, sums);
      });
}

namespace {

// put(panel, j, r, to) writes the value of row r and entry j.
template <typename Value, typename Put>
void unpack_panels(const Weight& packed, Dtype dtype, int64_t rows, int64_t cols, Value* weight,
                   const Put& put) {
  parallel_chunks(panels(rows), [&](int64_t number) {
    const int64_t first = number * kPanelRows;
    const int64_t count = std::min<int64_t>(kPanelRows, rows - first);
    const Panel panel = panel_of(packed, dtype, number);
    std::fill_n(weight + first * cols, count * cols, Value{0});
    for (int64_t j = 0; j < packed.kept; ++j) {
      const int32_t column = panel.columns[j];
      if (column < 0 || column >= cols) continue;
      for (int64_t r = 0; r < count; ++r) put(panel, j, r, weight + (first + r) * cols + column);
    }
  });
}

template <typename Value>
void unpack_values(const Weight& packed, Dtype dtype, int64_t rows, int64_t cols, Value* weight) {
  if (packed.type == ValueType::kNative) {
    unpack_panels(packed, dtype, rows, cols, weight,
                  [](const Panel& panel, int64_t j, int64_t r, Value* to) {
                    *to = static_cast<const Value*>(panel.values)[j * kPanelRows + r];
                  });
    return;
  }
  unpack_panels(packed, dtype, rows, cols, weight,
                [&](const Panel& panel, int64_t j, int64_t r, Value* to) {
                  const int64_t step = j / codes_in_byte(packed.type);
                  const auto codes = static_cast<const uint8_t*>(panel.values);
                  float value = cpu::code_number(packed.type, codes[step * kPanelRows + r], j);
                  if (panel.scales) {
                    const int64_t scale = j / panel.group_entries * kPanelRows + r;
                    value *= cpu::load(panel.scales, scale, panel.scale_dtype);
                  }
                  cpu::store(to, 0, value, dtype);
                });
}

}  // namespace

void unpack(const Weight& packed, int64_t rows, int64_t cols, Dtype dtype, void* weight) {
  if (dtype == Dtype::kFloat32) {
    unpack_values(packed, dtype, rows, cols, static_cast<uint32_t*>(weight));
  } else {
    unpack_values(packed, dtype, rows, cols, static_cast<uint16_t*>(weight));
  }
}

}  // namespace flashsparse::nm_panels
