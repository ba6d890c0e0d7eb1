// SPDX-License-Identifier: Apache-2.0
// tiled_bitmap of any origin: whether it is safe to be read.
#include "common/parallel.h"
#include "cpu/first_bad.h"
#include "cpu/tiled_bitmap/unit.h"

namespace flashsparse::tiled_bitmap {
namespace {

std::string check_offsets(const Packed& packed) {
  const int64_t count = units(packed.rows, packed.cols);
  const int32_t* offsets = packed.offsets;
  if (offsets[0] != 0) return "unit_offsets[0] is " + std::to_string(offsets[0]) + ", not 0";
  for (int64_t index = 0; index < count; ++index) {
    const int64_t lines = static_cast<int64_t>(offsets[index + 1]) - offsets[index];
    if (lines >= kHeadLines && lines <= most_lines(packed.item_bytes)) continue;
    return "unit_offsets[" + std::to_string(index + 1) +
           "] = " + std::to_string(offsets[index + 1]) + " gives unit " + std::to_string(index) +
           " " + std::to_string(lines) + " lines, and a unit has " + std::to_string(kHeadLines) +
           " to " + std::to_string(most_lines(packed.item_bytes));
  }
  if (offsets[count] != packed.num_lines) {
    return "unit_offsets ends at " + std::to_string(offsets[count]) + " lines, weight_packed has " +
           std::to_string(packed.num_lines);
  }
  return {};
}

// Bits of a mask word that are of weights inside the edges.
uint32_t inside(int lane, int word, int rows, int cols) {
  uint32_t bits = 0;
  for (int e = 0; e < 4; ++e) {
    if (bit_row(lane, 8 * e) >= rows) continue;
    const int left = cols - bit_col(lane, word, 8 * e);  // of every eighth column is one
    const int count = std::clamp((left + 7) / 8, 0, 8);
    bits |= ((1u << count) - 1) << 8 * e;
  }
  return bits;
}

// What is wrong with a unit, or null and the number of values that it keeps. Offsets are valid.
const char* check_unit(const Kernels& kernels, const Packed& packed, int64_t index,
                       const Unit& unit, int64_t& kept) {
  const int64_t begin = packed.offsets[index];
  const uint32_t* masks = packed.lines + begin * kLineWords;
  const uint32_t* starts = masks + kUnitMasks;
  if (unit.rows < kUnitRows || unit.cols < kUnitCols) {
    for (int i = 0; i < kUnitMasks; ++i) {
      if (masks[i] & ~inside(i / kMaskWords, i % kMaskWords, unit.rows, unit.cols)) {
        return " keeps an element beyond the edges of the weight";
      }
    }
  }
  RunLengths lengths;
  kernels.count_runs(masks, lengths);
  const int64_t lines = packed.offsets[index + 1] - begin - kHeadLines;
  const int64_t items = items_of_word(packed.item_bytes) * lines;
  bool fits = true;
  for (int run = 0; run < kRuns; ++run) {
    uint32_t columns = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t start = starts[lane] >> 16 * run & 0xffff;
      columns |= 1u << start % kLineWords;
      fits &= start / kLineWords + lengths[run][lane] <= items;
      kept += lengths[run][lane];
    }
    if (columns != ~0u) return " has two runs that begin in the same column";
  }
  return fits ? nullptr : " has a run that ends behind its lines";
}

}  // namespace

Validation validate(const Packed& packed, int64_t* row_kept) {
  std::string error = check_offsets(packed);
  if (!error.empty()) return {0, std::move(error)};
  const Kernels& own = kernels();
  const int64_t across = unit_cols(packed.cols), down = unit_rows(packed.rows);
  std::vector<int64_t> kept(down);
  cpu::FirstBad bad;
  parallel_chunks(down, [&](int64_t row) {
    for (int64_t col = 0; col < across; ++col) {
      const Unit unit = unit_at(row, col, packed.rows, packed.cols);
      const int64_t index = row * across + col;
      if (check_unit(own, packed, index, unit, kept[row])) bad.report(index);
    }
  });
  if (!bad.none()) {
    const int64_t index = bad.index();
    const Unit unit = unit_at(index / across, index % across, packed.rows, packed.cols);
    int64_t unused = 0;
    return {0, "unit " + std::to_string(index) + check_unit(own, packed, index, unit, unused)};
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
