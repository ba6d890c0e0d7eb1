// SPDX-License-Identifier: Apache-2.0
#include "cpu/interleaved_bitmap/interleaved_bitmap.h"

#include <algorithm>
#include <cstring>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/first_bad.h"
#include "cpu/interleaved_bitmap/kernels.h"
#include "cpu/kernels.h"
#include "cpu/marked.h"
#include "cpu/panels.h"
#include "cpu/scalar.h"
#include "formats/interleaved_bitmap.h"
#include "formats/zero.h"

namespace flashsparse::interleaved_bitmap {
namespace {

int rows_of(int64_t panel, int64_t rows) {
  return static_cast<int>(std::min<int64_t>(kPanelRows, rows - panel * kPanelRows));
}

cpu::Panel panel_of(const Weight& weight, int64_t panel) {
  const int64_t bytes = weight.codes ? 1 : cpu::bytes_of(weight.dtype);
  return {weight.masks + panel * column_pairs(weight.in_features),
          static_cast<const char*>(weight.values) + weight.panel_offsets[panel] * bytes};
}

// Bits of mask words for `rows` rows inside of the weight.
uint32_t rows_inside(int rows) { return rows == kPanelRows ? ~0u : (1u << 2 * rows) - 1; }
constexpr uint32_t kEvenColumn = 0x55555555;
constexpr int64_t kUnpackCols = 1024;  // of int8 values: a block of 16 rows that fits into L1

std::string check_offsets(const Weight& packed, int64_t num_values) {
  const int64_t* offset = packed.panel_offsets;
  const int64_t count = panels(packed.out_features);
  if (offset[0] != 0) return "panel_offsets[0] is " + std::to_string(offset[0]) + ", not 0";
  for (int64_t i = 1; i <= count; ++i) {
    if (offset[i] < offset[i - 1]) {
      return "panel_offsets[" + std::to_string(i) + "] = " + std::to_string(offset[i]) +
             " is smaller than the one before";
    }
  }
  if (offset[count] <= num_values - kValueSlack) return {};
  return "values has " + std::to_string(num_values) + " entries, panel_offsets promises " +
         std::to_string(offset[count]) + " and " + std::to_string(kValueSlack) + " more";
}

// The error in the masks of a panel, or nothing.
const char* check_masks(const Weight& packed, int64_t panel) {
  const int64_t pairs = column_pairs(packed.in_features);
  const uint32_t* masks = panel_of(packed, panel).masks;
  const uint32_t inside = rows_inside(rows_of(panel, packed.out_features));
  int64_t kept = 0;
  uint32_t outside = 0;
  for (int64_t k = 0; k < pairs; ++k) {
    kept += __builtin_popcount(masks[k]);
    outside |= masks[k] & ~inside;
  }
  const void* values = panel_of(packed, panel).values;
  const int64_t promised = packed.panel_offsets[panel + 1] - packed.panel_offsets[panel];
  if (packed.codes && std::memchr(values, 0, promised)) return " keep a code of 0";
  if (packed.in_features % 2) outside |= masks[pairs - 1] & ~kEvenColumn;
  if (outside) return " keep an element beyond the edges of the weight";
  return kept == promised ? nullptr : " keep another number of values than panel_offsets says";
}

// count_elements(first, elements) counts the nonzeros of a run of the dense weight.
template <typename Count>
void count_panels(int64_t rows, int64_t cols, int64_t* panel_offsets, const Count& count_elements) {
  parallel_chunks(panels(rows), [&](int64_t panel) {
    panel_offsets[panel + 1] =
        count_elements(panel * kPanelRows * cols, rows_of(panel, rows) * cols);
  });
  panel_offsets[0] = 0;
  for (int64_t panel = 0; panel < panels(rows); ++panel) {
    panel_offsets[panel + 1] += panel_offsets[panel];
  }
}

template <typename Value, typename PackPanel>
void pack_panels(PackPanel pack_panel, const Value* weight, int64_t rows, int64_t cols,
                 const int64_t* panel_offsets, uint32_t* masks, Value* values) {
  parallel_chunks(panels(rows), [&](int64_t panel) {
    pack_panel(weight + panel * kPanelRows * cols, cols, rows_of(panel, rows), cols,
               masks + panel * column_pairs(cols), values + panel_offsets[panel]);
  });
  std::fill_n(values + panel_offsets[panels(rows)], kValueSlack, Value{0});
}

template <typename Value, typename UnpackPanel>
void unpack_panels(UnpackPanel unpack_panel, const Weight& packed, Value* weight) {
  const int64_t rows = packed.out_features, cols = packed.in_features;
  parallel_chunks(panels(rows), [&](int64_t panel) {
    unpack_panel(panel_of(packed, panel), rows_of(panel, rows), cols,
                 weight + panel * kPanelRows * cols, cols);
  });
}

}  // namespace

void count(const uint16_t* weight, int64_t rows, int64_t cols, int64_t* panel_offsets) {
  const cpu::Kernels& shared = cpu::kernels();
  count_panels(rows, cols, panel_offsets, [&](int64_t first, int64_t elements) {
    return shared.count_nonzeros(weight + first, elements);
  });
}

void count(const int8_t* codes, int64_t rows, int64_t cols, int64_t* panel_offsets) {
  count_panels(rows, cols, panel_offsets, [&](int64_t first, int64_t elements) {
    return elements - std::count(codes + first, codes + first + elements, int8_t{0});
  });
}

void count(const uint32_t* weight, int64_t rows, int64_t cols, int64_t* panel_offsets) {
  count_panels(rows, cols, panel_offsets, [&](int64_t first, int64_t elements) {
    return elements - std::count_if(weight + first, weight + first + elements,
                                    [](uint32_t bits) { return is_zero(bits); });
  });
}

void pack(const uint16_t* weight, int64_t rows, int64_t cols, const int64_t* panel_offsets,
          uint32_t* masks, uint16_t* values) {
  pack_panels(kernels().pack_panel, weight, rows, cols, panel_offsets, masks, values);
}

void pack(const int8_t* codes, int64_t rows, int64_t cols, const int64_t* panel_offsets,
          uint32_t* masks, int8_t* values) {
  const Kernels& own = kernels();
  cpu::blocks_of(codes, rows, cols, kPanelRows, cols)([&](const cpu::Block& block) {
    static thread_local AlignedBuffer buffer;
    const int64_t panel = block.row / kPanelRows;
    const int64_t kept = panel_offsets[panel + 1] - panel_offsets[panel];
    uint16_t* made = buffer.get<uint16_t>(kept + kValueSlack);
    own.pack_panel(block.values, block.stride, static_cast<int>(block.rows), cols,
                   masks + panel * column_pairs(cols), made);
    cpu::unmark(made, kept, values + panel_offsets[panel]);
  });
  std::fill_n(values + panel_offsets[panels(rows)], kValueSlack, int8_t{0});
}

void pack(const uint32_t* weight, int64_t rows, int64_t cols, const int64_t* panel_offsets,
          uint32_t* masks, uint32_t* values) {
  pack_panels(kernels().pack_panel32, weight, rows, cols, panel_offsets, masks, values);
}

std::string validate(const Weight& packed, int64_t num_values) {
  std::string error = check_offsets(packed, num_values);
  if (!error.empty()) return error;
  const int64_t count = panels(packed.out_features);
  cpu::FirstBad bad;
  parallel_chunks(count, [&](int64_t panel) {
    if (check_masks(packed, panel)) bad.report(panel);
  });
  if (bad.none()) return {};
  return "the masks of panel " + std::to_string(bad.index()) + check_masks(packed, bad.index());
}

void unpack_codes(const Weight& packed, int8_t* codes) {
  blocks_of(packed, kUnpackCols)(cpu::CodeSink(codes, packed.in_features));
}

void unpack(const Weight& packed, void* weight) {
  if (packed.codes) {
    const cpu::CodeSink sink(weight, packed.dtype, packed.scales, packed.in_features);
    return blocks_of(packed, kUnpackCols)(sink);
  }
  if (packed.dtype == Dtype::kFloat32) {
    unpack_panels(kernels().unpack_panel32, packed, static_cast<uint32_t*>(weight));
  } else {
    unpack_panels(kernels().unpack_panel, packed, static_cast<uint16_t*>(weight));
  }
}

cpu::Blocks blocks_of(const Weight& packed, int64_t wide) {
  return [=](const std::function<void(const cpu::Block&)>& consume) {
    const Kernels& own = kernels();
    parallel_chunks(panels(packed.out_features), [&](int64_t panel) {
      static thread_local AlignedBuffer buffer;
      uint16_t* block = buffer.get<uint16_t>(kPanelRows * wide);
      const int rows = rows_of(panel, packed.out_features);
      const cpu::Panel whole = panel_of(packed, panel);
      const uint16_t* values = static_cast<const uint16_t*>(whole.values);
      if (packed.codes) {
        static thread_local AlignedBuffer code_buffer;
        const int64_t kept = packed.panel_offsets[panel + 1] - packed.panel_offsets[panel];
        uint16_t* made = code_buffer.get<uint16_t>(kept + kValueSlack);
        cpu::mark(static_cast<const int8_t*>(whole.values), kept, made);
        values = made;
      }
      for (int64_t col = 0; col < packed.in_features; col += wide) {
        const int64_t cols = std::min(wide, packed.in_features - col);
        const uint32_t* masks = whole.masks + column_pairs(col);
        own.unpack_panel({masks, values}, rows, cols, block, wide);
        consume({panel * kPanelRows, col, rows, cols, block, wide});
        for (int64_t pair = 0; pair < column_pairs(cols); ++pair) {
          values += __builtin_popcount(masks[pair]);
        }
      }
    });
  };
}

void linear(const Weight& weight, const void* x, int64_t tokens, const void* bias, void* y,
            Dtype dtype) {
  const cpu::LinearProblem problem{
      weight.out_features, weight.in_features, weight.dtype, x, tokens, bias, y, dtype,
      weight.scales};
  cpu::multiply_panels(problem, [&](int64_t panel) { return panel_of(weight, panel); });
}

}  // namespace flashsparse::interleaved_bitmap
