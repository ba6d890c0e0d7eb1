// SPDX-License-Identifier: Apache-2.0
// Reads valid tiled_bitmap: as a dense weight, as blocks for other packers, and as panels.
#include <atomic>
#include <cstring>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/interleaved_bitmap/kernels.h"
#include "cpu/marked.h"
#include "cpu/panels.h"
#include "cpu/tiled_bitmap/unit.h"
#include "formats/panel.h"

namespace flashsparse::tiled_bitmap {
namespace {

// Appends a row of units, which is a panel, to masks and values; returns the end of the values.
uint16_t* append_unit_row(const Packed& packed, int64_t unit_row, uint32_t* masks,
                          uint16_t* values) {
  static_assert(kUnitRows == kPanelRows);
  const Kernels& own = kernels();
  const auto& panels = interleaved_bitmap::kernels();
  const int64_t across = unit_cols(packed.cols);
  alignas(64) uint16_t dense[kUnitRows * kUnitCols];
  for (int64_t col = 0; col < across; ++col) {
    const Unit unit = unit_at(unit_row, col, packed.rows, packed.cols);
    read_unit(own, packed, unit_row * across + col, dense, kUnitCols);
    values = panels.pack_panel(dense, kUnitCols, unit.rows, unit.cols,
                               masks + column_pairs(unit.col), values);
  }
  return values;
}

// The same for int8 values, of which `kept` are expected; false if there are fewer.
bool append_codes(const Packed& packed, int64_t unit_row, int64_t kept, uint32_t* masks,
                  int8_t* codes) {
  static thread_local AlignedBuffer buffer;
  uint16_t* values = buffer.get<uint16_t>(kept + kValueSlack);
  if (append_unit_row(packed, unit_row, masks, values) != values + kept) return false;
  cpu::unmark(values, kept, codes);
  return true;
}

}  // namespace

cpu::Blocks blocks_of(const Packed& packed, int row_units, int col_units) {
  return [=](const std::function<void(const cpu::Block&)>& consume) {
    const Kernels& own = kernels();
    const int64_t across = unit_cols(packed.cols), down = unit_rows(packed.rows);
    const int64_t stride = col_units * kUnitCols;
    parallel_chunks((down + row_units - 1) / row_units, [&](int64_t band) {
      static thread_local AlignedBuffer buffer;
      uint16_t* block = buffer.get<uint16_t>(row_units * kUnitRows * stride);
      const int64_t first_row = band * row_units;
      const int64_t rows = std::min<int64_t>(row_units, down - first_row);
      for (int64_t first_col = 0; first_col < across; first_col += col_units) {
        const int64_t cols = std::min<int64_t>(col_units, across - first_col);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            read_unit(own, packed, (first_row + r) * across + first_col + c,
                      block + r * kUnitRows * stride + c * kUnitCols, stride);
          }
        }
        const int64_t row = first_row * kUnitRows, col = first_col * kUnitCols;
        consume({row, col, std::min(rows * kUnitRows, packed.rows - row),
                 std::min(cols * kUnitCols, packed.cols - col), block, stride});
      }
    });
  };
}

void unpack(const Packed& packed, uint16_t* weight) {
  blocks_of(packed, 1, 1)([&](const cpu::Block& block) {
    uint16_t* to = weight + block.row * packed.cols + block.col;
    for (int64_t row = 0; row < block.rows; ++row) {
      std::memcpy(to + row * packed.cols, block.values + row * block.stride,
                  block.cols * sizeof *to);
    }
  });
}

bool to_interleaved_bitmap(const Packed& packed, const int64_t* row_kept, uint32_t* masks,
                           void* values_) {
  interleaved_bitmap::kernels();  // selected before any thread starts
  kernels();
  const int64_t pairs = column_pairs(packed.cols), down = unit_rows(packed.rows);
  std::atomic<bool> counted{true};
  if (packed.item_bytes == 1) {
    int8_t* codes = static_cast<int8_t*>(values_);
    parallel_chunks(down, [&](int64_t row) {
      const int64_t kept = row_kept[row + 1] - row_kept[row];
      const bool all = append_codes(packed, row, kept, masks + row * pairs, codes + row_kept[row]);
      if (!all) counted.store(false);
    });
    std::fill_n(codes + row_kept[down], kValueSlack, int8_t{0});
    return counted.load();
  }
  uint16_t* values = static_cast<uint16_t*>(values_);
  parallel_chunks(down, [&](int64_t row) {
    const uint16_t* end = append_unit_row(packed, row, masks + row * pairs, values + row_kept[row]);
    if (end != values + row_kept[row + 1]) counted.store(false);
  });
  std::fill_n(values + row_kept[down], kValueSlack, uint16_t{0});
  return counted.load();
}

void linear(const Packed& packed, const cpu::LinearProblem& problem) {
  constexpr int kGroup = 8;
  interleaved_bitmap::kernels();  // selected before any thread starts
  kernels();
  cpu::multiply_after_reading<kGroup>(problem, [&](int64_t group, auto& panels) {
    for (int p = 0; p < panels.count; ++p) {
      panels.end[p] = append_unit_row(packed, group * kGroup + p, panels.masks[p], panels.begin[p]);
      if (packed.item_bytes == 2) continue;
      // In place: a value is written where none has to be read any more.
      cpu::unmark(panels.begin[p], panels.end[p] - panels.begin[p],
                  reinterpret_cast<int8_t*>(panels.begin[p]));
    }
  });
}

}  // namespace flashsparse::tiled_bitmap
