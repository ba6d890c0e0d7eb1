// SPDX-License-Identifier: Apache-2.0
// Validates tiled_bitmap tensors of any origin.
#include "common/parallel.h"
#include "cpu/first_bad.h"
#include "cpu/tiled_bitmap/unit.h"
#include "formats/tiled_bitmap_errors.h"

namespace flashsparse::tiled_bitmap {
namespace {

// The bits of a mask word for weights inside of the edges.
uint32_t inside(int lane, int word, int rows, int cols) {
  uint32_t bits = 0;
  for (int e = 0; e < 4; ++e) {
    if (bit_row(lane, 8 * e) >= rows) continue;
    const int left = cols - bit_col(lane, word, 8 * e);  // consecutive bits are 8 columns apart
    const int count = std::clamp((left + 7) / 8, 0, 8);
    bits |= ((1u << count) - 1) << 8 * e;
  }
  return bits;
}

// The number of values of a unit, or the rule that it breaks. Its offsets are valid.
int64_t judge_unit(const Kernels& kernels, const Packed& packed, int64_t index, const Unit& unit) {
  const int64_t begin = packed.offsets[index];
  const uint32_t* masks = packed.lines + begin * kLineWords;
  const uint32_t* starts = masks + kUnitMasks;
  if (unit.rows < kUnitRows || unit.cols < kUnitCols) {
    for (int i = 0; i < kUnitMasks; ++i) {
      if (masks[i] & ~inside(i / kMaskWords, i % kMaskWords, unit.rows, unit.cols)) {
        return kKeepsOutside;
      }
    }
  }
  RunLengths lengths;
  kernels.count_runs(masks, lengths);
  const int64_t lines = packed.offsets[index + 1] - begin - kHeadLines;
  const int64_t items = items_of_word(packed.item_bytes) * lines;
  int64_t kept = 0;
  bool fits = true;
  for (int run = 0; run < kRuns; ++run) {
    uint32_t columns = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t start = starts[lane] >> 16 * run & 0xffff;
      columns |= 1u << start % kLineWords;
      fits &= start / kLineWords + lengths[run][lane] <= items;
      kept += lengths[run][lane];
    }
    if (columns != ~0u) return kSharedColumn;
  }
  return fits ? kept : kLeavesColumn;
}

}  // namespace

Validation validate(const Packed& packed, int64_t* row_kept) {
  std::string error = offsets_error(packed.offsets, units(packed.rows, packed.cols),
                                    packed.num_lines, packed.item_bytes);
  if (!error.empty()) return {0, std::move(error)};
  const Kernels& own = kernels();
  const int64_t across = unit_cols(packed.cols), down = unit_rows(packed.rows);
  std::vector<int64_t> kept(down);
  cpu::FirstBad bad;
  parallel_chunks(down, [&](int64_t row) {
    for (int64_t col = 0; col < across; ++col) {
      const Unit unit = unit_at(row, col, packed.rows, packed.cols);
      const int64_t index = row * across + col;
      const int64_t found = judge_unit(own, packed, index, unit);
      if (found < 0) return bad.report(index);
      kept[row] += found;
    }
  });
  if (!bad.none()) {
    const int64_t index = bad.index();
    const Unit unit = unit_at(index / across, index % across, packed.rows, packed.cols);
    return {0, unit_error(index, judge_unit(own, packed, index, unit))};
  }
  int64_t total = 0;
  if (row_kept) row_kept[0] = 0;
  for (int64_t row = 0; row < down; ++row) {
    total += kept[row];
    if (row_kept) row_kept[row + 1] = total;
  }
  return {total, {}};
}

}  // namespace flashsparse::tiled_bitmap
