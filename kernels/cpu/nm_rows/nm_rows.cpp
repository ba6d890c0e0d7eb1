// SPDX-License-Identifier: Apache-2.0
#include "cpu/nm_rows/nm_rows.h"

#include <algorithm>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/entries.h"
#include "cpu/nm_rows/kernels.h"
#include "cpu/scalar.h"
#include "cpu/scalar_code.h"
#include "formats/nm_rows.h"

namespace flashsparse::nm_rows {
namespace {

// A window may be read as far as the widest position reaches, whatever its own width.
constexpr int64_t kMostPositions = 256;

// Where a panel's tensors start, and how far they go.
class Layout {
 public:
  Layout(const Weight& weight, int64_t cols)
      : weight_(weight),
        extent_{weight.n, weight.m, (cols + weight.m - 1) / weight.m, 0},
        steps_(code_bytes(weight.type, kept())),
        words_(position_words(kept(), weight.m)) {
    extent_.group_windows = weight.group ? weight.group / weight.m : extent_.windows;
    groups_ = (extent_.windows + extent_.group_windows - 1) / extent_.group_windows;
  }

  const Extent& extent() const { return extent_; }
  int64_t kept() const { return extent_.windows * extent_.n; }
  Panel panel(int64_t number) const {
    const int64_t scales = number * groups_ * kPanelRows * cpu::bytes_of(weight_.scale_dtype);
    return {weight_.values + number * steps_ * kPanelRows,
            weight_.positions + number * words_ * kPanelRows,
            static_cast<const char*>(weight_.scales) + scales};
  }

 private:
  const Weight& weight_;
  Extent extent_;
  int64_t steps_, words_, groups_;
};

// x[tokens][cols] to fp32 [windows][tokens][m].
void pack_windows(const Kernels& own, const char* x, Dtype dtype, int64_t cols, int tokens,
                  const Extent& extent, float* packed) {
  const int64_t m = extent.m, width = extent.windows * m;
  if (tokens == 1) {
    own.widen(x, dtype, cols, packed);
    return std::fill(packed + cols, packed + width, 0.0f);
  }
  static thread_local AlignedBuffer buffer;
  float* row = buffer.get<float>(width);
  std::fill(row + cols, row + width, 0.0f);
  for (int t = 0; t < tokens; ++t) {
    own.widen(x + t * cols * cpu::bytes_of(dtype), dtype, cols, row);
    for (int64_t w = 0; w < extent.windows; ++w) {
      std::copy_n(row + w * m, m, packed + (w * tokens + t) * m);
    }
  }
}

}  // namespace

void linear(const Weight& weight, const cpu::LinearProblem& problem) {
  const Kernels& own = kernels();
  const Layout layout(weight, problem.in_features);
  const Extent& extent = layout.extent();
  cpu::multiply_entries(
      problem, own.block_tokens, extent.windows * extent.m, kMostPositions,
      [&](const char* x, int tokens, float* packed) {
        pack_windows(own, x, problem.dtype, problem.in_features, tokens, extent, packed);
      },
      [&](int64_t panel, const float* x, int tokens, float* sums) {
        own.multiply(layout.panel(panel), extent, weight.type, weight.scale_dtype, x, tokens, sums);
      });
}

void unpack(const Weight& packed, int64_t rows, int64_t cols, Dtype dtype, void* weight) {
  const Layout layout(packed, cols);
  const Extent& extent = layout.extent();
  const int bits = position_bits(packed.m), in_word = 32 / bits;
  const int64_t bytes = cpu::bytes_of(dtype), kept = layout.kept();
  parallel_chunks(panels(rows), [&](int64_t number) {
    const Panel panel = layout.panel(number);
    const int64_t first = number * kPanelRows;
    const int64_t count = std::min<int64_t>(kPanelRows, rows - first);
    char* dense = static_cast<char*>(weight) + first * cols * bytes;
    std::fill_n(dense, count * cols * bytes, char{0});
    for (int64_t j = 0; j < kept; ++j) {
      const uint8_t* codes = panel.values + j / codes_in_byte(packed.type) * kPanelRows;
      const uint32_t* words = panel.positions + j / in_word * kPanelRows;
      const int64_t window = j / extent.n, group = window / extent.group_windows;
      for (int64_t r = 0; r < count; ++r) {
        const uint32_t position = words[r] >> j % in_word * bits & ((1u << bits) - 1);
        const int64_t column = window * extent.m + position;
        if (column >= cols) continue;
        float value = cpu::code_number(packed.type, codes[r], j);
        if (packed.scales) {
          value *= cpu::load(panel.scales, group * kPanelRows + r, packed.scale_dtype);
        }
        cpu::store(dense, r * cols + column, value, dtype);
      }
    }
  });
}

}  // namespace flashsparse::nm_rows
