// SPDX-License-Identifier: Apache-2.0
#include "cpu/interleaved_bitmap/interleaved_bitmap.h"

#include <algorithm>

#include "common/parallel.h"
#include "cpu/interleaved_bitmap/kernels.h"
#include "cpu/kernels.h"
#include "cpu/panels.h"
#include "formats/interleaved_bitmap.h"

namespace flashsparse::interleaved_bitmap {
namespace {

int rows_of(int64_t panel, int64_t rows) {
  return static_cast<int>(std::min<int64_t>(kPanelRows, rows - panel * kPanelRows));
}

cpu::Panel panel_of(const Weight& weight, int64_t panel) {
  return {weight.masks + panel * column_pairs(weight.in_features),
          weight.values + weight.panel_offsets[panel]};
}

}  // namespace

void count(const uint16_t* weight, int64_t rows, int64_t cols, int64_t* panel_offsets) {
  const cpu::Kernels& shared = cpu::kernels();
  parallel_chunks(panels(rows), [&](int64_t panel) {
    panel_offsets[panel + 1] =
        shared.count_nonzeros(weight + panel * kPanelRows * cols, rows_of(panel, rows) * cols);
  });
  panel_offsets[0] = 0;
  for (int64_t panel = 0; panel < panels(rows); ++panel) {
    panel_offsets[panel + 1] += panel_offsets[panel];
  }
}

void pack(const uint16_t* weight, int64_t rows, int64_t cols, const int64_t* panel_offsets,
          uint32_t* masks, uint16_t* values) {
  const Kernels& own = kernels();
  parallel_chunks(panels(rows), [&](int64_t panel) {
    own.pack_panel(weight + panel * kPanelRows * cols, cols, rows_of(panel, rows), cols,
                   masks + panel * column_pairs(cols), values + panel_offsets[panel]);
  });
  std::fill_n(values + panel_offsets[panels(rows)], kValueSlack, uint16_t{0});
}

void unpack(const Weight& packed, uint16_t* weight) {
  const Kernels& own = kernels();
  const int64_t rows = packed.out_features, cols = packed.in_features;
  parallel_chunks(panels(rows), [&](int64_t panel) {
    own.unpack_panel(panel_of(packed, panel), rows_of(panel, rows), cols,
                     weight + panel * kPanelRows * cols, cols);
  });
}

void linear(const Weight& weight, const void* x, int64_t tokens, const void* bias, void* y,
            Dtype dtype) {
  const cpu::LinearProblem problem{
      weight.out_features, weight.in_features, weight.dtype, x, tokens, bias, y, dtype};
  cpu::multiply_panels(problem, [&](int64_t panel) { return panel_of(weight, panel); });
}

}  // namespace flashsparse::interleaved_bitmap
