// SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_panels/cpu_panels.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/cpu_panels/kernels.h"
#include "cpu/entries.h"
#include "cpu/scalar.h"
#include "cpu/scalar_code.h"
#include "formats/cpu_panels.h"

namespace flashsparse::cpu_panels {
namespace {

// A window may be read as far as the widest position reaches, whatever its own width.
constexpr int64_t kMostPositions = 256;

// Where a panel's tensors start, and how far they go.
class Layout {
 public:
  // `dtype` is that of native values.
  Layout(const Weight& weight, Dtype dtype)
      : weight_(weight), extent_{weight.type, dtype, weight.scale_dtype, weight.n, weight.m, 0, 0} {
    extent_.windows = weight.kept / weight.n;
    extent_.group_windows =
        weight.group_entries ? weight.group_entries / weight.n : extent_.windows;
    const int64_t groups = (extent_.windows + extent_.group_windows - 1) / extent_.group_windows;
    scale_bytes_ = groups * kPanelRows * cpu::bytes_of(weight.scale_dtype);
    const bool native = weight.type == ValueType::kNative;
    value_bytes_ = kPanelRows * (native ? weight.kept * cpu::bytes_of(dtype)
                                        : code_bytes(weight.type, weight.kept));
    words_ = kPanelRows * position_words(weight.kept, weight.m);
    if (weight.kinds) count_panels(weight);
  }

  const Extent& extent() const { return extent_; }
  int64_t kept() const { return weight_.kept; }
  Panel panel(int64_t number) const {
    Panel panel{static_cast<const char*>(weight_.values) + number * value_bytes_, nullptr, nullptr,
                nullptr, nullptr};
    if (weight_.scales) {
      panel.scales = static_cast<const char*>(weight_.scales) + number * scale_bytes_;
    }
    if (weight_.kinds) {
      const Begin& begin = begins_[number];
      panel.values = static_cast<const char*>(weight_.values) + begin.bytes;
      panel.positions = weight_.positions + begin.words;
      panel.kinds = weight_.kinds + number * units_of(weight_.kept);
    } else if (weight_.columns) {
      panel.columns = weight_.columns + number / weight_.vector_panels * weight_.kept;
    } else {
      panel.positions = weight_.positions + number * words_;
    }
    return panel;
  }

 private:
  struct Begin {
    int64_t bytes, words;
  };

  // Where panels of units of two kinds begin.
  void count_panels(const Weight& weight) {
    Begin begin{0, 0};
    begins_.reserve(weight.panels);
    for (int64_t p = 0; p < weight.panels; ++p) {
      begins_.push_back(begin);
      const auto sizes = hybrid_sizes(weight.kinds + p * units_of(weight.kept), weight.kept);
      begin.bytes += kPanelRows * code_bytes(weight.type, sizes.entries);
      begin.words += kPanelRows * sizes.words;
    }
  }

  const Weight& weight_;
  Extent extent_;
  int64_t value_bytes_, scale_bytes_, words_;
  std::vector<Begin> begins_;
};

// x[tokens][cols] to fp32 [width / m][tokens][m], with zeros behind the columns: windows of
// nm_rows. nm_panels takes single columns, and the last row is the zero that entries beyond the
// weight's edge multiply.
void pack_windows(const Kernels& own, const cpu::LinearProblem& problem, const char* x, int tokens,
                  int64_t m, int64_t width, float* packed) {
  const int64_t cols = problem.in_features;
  if (tokens == 1) {
    own.widen(x, problem.dtype, cols, packed);
    return std::fill(packed + cols, packed + width, 0.0f);
  }
  static thread_local AlignedBuffer buffer;
  float* row = buffer.get<float>(width);
  std::fill(row + cols, row + width, 0.0f);
  for (int t = 0; t < tokens; ++t) {
    own.widen(x + t * cols * cpu::bytes_of(problem.dtype), problem.dtype, cols, row);
    if (m == 1) {
      for (int64_t c = 0; c < width; ++c) packed[c * tokens + t] = row[c];
    } else {
      for (int64_t w = 0; w < width / m; ++w) {
        std::copy_n(row + w * m, m, packed + (w * tokens + t) * m);
      }
    }
  }
}

}  // namespace

void linear(const Weight& weight, const cpu::LinearProblem& problem) {
  const Kernels& own = kernels();
  const Layout layout(weight, problem.weight_dtype);
  const bool shared = weight.columns != nullptr;
  const Extent& extent = layout.extent();
  const int64_t width = shared ? problem.in_features + 1 : extent.windows * extent.m;
  const Multiply multiply = shared ? own.panels : weight.kinds ? own.hybrid : own.rows;
  cpu::multiply_entries(
      problem, shared ? own.panels_tokens : own.rows_tokens, width, shared ? 0 : kMostPositions,
      [&](const char* x, int tokens, float* packed) {
        pack_windows(own, problem, x, tokens, extent.m, width, packed);
      },
      [&](int64_t number, const float* x, int tokens, float* sums) {
        multiply(layout.panel(number), extent, x, tokens, sums);
      });
}

namespace {

// The column of entry j and row r, of any origin.
int64_t column_of(const Panel& panel, const Extent& extent, int64_t j, int64_t r) {
  if (panel.columns) return panel.columns[j];
  const int bits = position_bits(extent.m), in_word = 32 / bits;
  const uint32_t word = panel.positions[j / in_word * kPanelRows + r];
  return j / extent.n * extent.m + (word >> j % in_word * bits & ((1u << bits) - 1));
}

// The value of entry j and row r of codes, which is of a window, with its scale if there is one.
float number_of(const Panel& panel, const Extent& extent, int64_t j, int64_t window, int64_t r) {
  const int64_t step = j / codes_in_byte(extent.type);
  const auto codes = static_cast<const uint8_t*>(panel.values);
  const float number = cpu::code_number(extent.type, codes[step * kPanelRows + r], j);
  if (!panel.scales) return number;
  const int64_t scale = window / extent.group_windows * kPanelRows + r;
  return number * cpu::load(panel.scales, scale, extent.scale_dtype);
}

// Writes rows [count, cols] of a panel of units of two kinds, over zeros.
void unpack_hybrid(const Panel& panel, const Extent& extent, int64_t count, int64_t cols,
                   Dtype dtype, void* dense) {
  int64_t j = 0, word = 0;
  for (int64_t window = 0; window < extent.windows; ++window) {
    const int64_t place = window % kUnitWindows;
    const bool is_dense = panel.kinds[window / kUnitWindows];
    const int64_t entries = is_dense ? 4 : 2;
    for (int64_t i = 0; i < entries; ++i, ++j) {
      for (int64_t r = 0; r < count; ++r) {
        int64_t column = i;
        if (!is_dense) {
          const uint32_t pairs = panel.positions[(word + place / 8) * kPanelRows + r];
          column = pairs >> (place % 8 * 4 + 2 * i) & 3;
        }
        column += 4 * window;
        if (column >= cols) continue;
        cpu::store(dense, r * cols + column, number_of(panel, extent, j, window, r), dtype);
      }
    }
    const bool ends = place + 1 == kUnitWindows || window + 1 == extent.windows;
    if (ends && !is_dense) word += position_words(2 * (place + 1), 4);
  }
}

}  // namespace

void unpack(const Weight& packed, int64_t rows, int64_t cols, Dtype dtype, void* weight) {
  const Layout layout(packed, dtype);
  const Extent& extent = layout.extent();
  const int64_t bytes = cpu::bytes_of(dtype);
  parallel_chunks(panels(rows), [&](int64_t number) {
    const Panel panel = layout.panel(number);
    const auto values = static_cast<const char*>(panel.values);
    const int64_t first = number * kPanelRows;
    const int64_t count = std::min<int64_t>(kPanelRows, rows - first);
    char* dense = static_cast<char*>(weight) + first * cols * bytes;
    std::fill_n(dense, count * cols * bytes, char{0});
    if (panel.kinds) return unpack_hybrid(panel, extent, count, cols, dtype, dense);
    for (int64_t j = 0; j < layout.kept(); ++j) {
      for (int64_t r = 0; r < count; ++r) {
        const int64_t column = column_of(panel, extent, j, r);
        if (column < 0 || column >= cols) continue;
        const int64_t place = r * cols + column;
        if (extent.type == ValueType::kNative) {
          std::memcpy(dense + place * bytes, values + (j * kPanelRows + r) * bytes, bytes);
        } else {
          cpu::store(dense, place, number_of(panel, extent, j, j / extent.n, r), dtype);
        }
      }
    }
  });
}

}  // namespace flashsparse::cpu_panels
