// SPDX-License-Identifier: Apache-2.0
#include "cpu/interleaved_bitmap.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/float16.h"
#include "common/parallel.h"
#include "formats/interleaved_bitmap.h"
#include "formats/tiled_csl.h"

namespace flashsparse::interleaved_bitmap {
namespace {

float load(const void* data, int64_t index, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32: return static_cast<const float*>(data)[index];
    case Dtype::kFloat16: return float_from_float16(static_cast<const uint16_t*>(data)[index]);
    default: return float_from_bfloat16(static_cast<const uint16_t*>(data)[index]);
  }
}

void store(void* data, int64_t index, float value, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32: static_cast<float*>(data)[index] = value; break;
    case Dtype::kFloat16: static_cast<uint16_t*>(data)[index] = float16_from_float(value); break;
    default: static_cast<uint16_t*>(data)[index] = bfloat16_from_float(value);
  }
}

}  // namespace

void count(const uint16_t* weight, int64_t rows, int64_t cols, int64_t* panel_offsets) {
  parallel_chunks(panels(rows), [&](int64_t panel) {
    const int64_t begin = panel * kPanelRows, end = std::min(rows, begin + kPanelRows);
    int64_t nonzeros = 0;
    for (int64_t i = begin * cols; i < end * cols; ++i) nonzeros += !tiled_csl::is_zero(weight[i]);
    panel_offsets[panel + 1] = nonzeros;
  });
  panel_offsets[0] = 0;
  for (int64_t panel = 0; panel < panels(rows); ++panel) panel_offsets[panel + 1] += panel_offsets[panel];
}

void pack(const uint16_t* weight, int64_t rows, int64_t cols, const int64_t* panel_offsets,
          uint32_t* masks, uint16_t* values) {
  parallel_chunks(panels(rows), [&](int64_t panel) {
    uint16_t* out = values + panel_offsets[panel];
    for (int64_t pair = 0; pair < column_pairs(cols); ++pair) {
      uint32_t mask = 0;
      for (int bit = 0; bit < 32; ++bit) {
        const int64_t row = panel * kPanelRows + bit / 2, col = pair * 2 + bit % 2;
        if (row >= rows || col >= cols || tiled_csl::is_zero(weight[row * cols + col])) continue;
        mask |= 1u << bit;
        *out++ = weight[row * cols + col];
      }
      masks[panel * column_pairs(cols) + pair] = mask;
    }
  });
  std::fill_n(values + panel_offsets[panels(rows)], kValueSlack, uint16_t{0});
}

void unpack(const Weight& packed, uint16_t* weight) {
  const int64_t rows = packed.out_features, cols = packed.in_features;
  std::memset(weight, 0, static_cast<size_t>(rows) * cols * sizeof(uint16_t));
  parallel_chunks(panels(rows), [&](int64_t panel) {
    const uint16_t* value = packed.values + packed.panel_offsets[panel];
    for (int64_t pair = 0; pair < column_pairs(cols); ++pair) {
      for (uint32_t mask = packed.masks[panel * column_pairs(cols) + pair]; mask; mask &= mask - 1) {
        const int bit = __builtin_ctz(mask);
        weight[(panel * kPanelRows + bit / 2) * cols + pair * 2 + bit % 2] = *value++;
      }
    }
  });
}

void linear(const Weight& weight, const void* x, int64_t tokens, const void* bias, void* y,
            Dtype dtype) {
  const int64_t rows = weight.out_features, cols = weight.in_features;
  parallel_chunks(panels(rows), [&](int64_t panel) {
    std::vector<float> sums(kPanelRows * tokens, 0.f);
    const uint16_t* value = weight.values + weight.panel_offsets[panel];
    for (int64_t pair = 0; pair < column_pairs(cols); ++pair) {
      for (uint32_t mask = weight.masks[panel * column_pairs(cols) + pair]; mask; mask &= mask - 1) {
        const int bit = __builtin_ctz(mask);
        const float w = load(value++, 0, weight.dtype);
        for (int64_t t = 0; t < tokens; ++t) {
          sums[bit / 2 * tokens + t] += w * load(x, t * cols + pair * 2 + bit % 2, dtype);
        }
      }
    }
    for (int64_t r = 0; r < std::min<int64_t>(kPanelRows, rows - panel * kPanelRows); ++r) {
      const int64_t row = panel * kPanelRows + r;
      for (int64_t t = 0; t < tokens; ++t) {
        store(y, t * rows + row, sums[r * tokens + t] + (bias ? load(bias, row, dtype) : 0.f), dtype);
      }
    }
  });
}

}  // namespace flashsparse::interleaved_bitmap
