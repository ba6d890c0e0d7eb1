// SPDX-License-Identifier: Apache-2.0
// Packs dense blocks to tiled_bitmap.
#include <cstring>
#include <utility>

#include "common/parallel.h"
#include "cpu/tiled_bitmap/unit.h"

namespace flashsparse::tiled_bitmap {
namespace {

// Sorts lanes by the length of their runs, the longest first, equal ones by number.
void sort_lanes(const uint8_t (&lengths)[kLanes], uint8_t (&lanes)[kLanes]) {
  constexpr int kLongest = kLaneWeights / kRuns;
  uint8_t places[kLongest + 2] = {};  // places[n]: position of the first run of n values
  for (const uint8_t length : lengths) ++places[kLongest - length + 1];
  for (int i = 1; i <= kLongest; ++i) places[i] = static_cast<uint8_t>(places[i] + places[i - 1]);
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes[places[kLongest - lengths[lane]]++] = static_cast<uint8_t>(lane);
  }
}

}  // namespace

int assign_columns(const RunLengths& lengths, uint32_t* starts) {
  uint8_t lanes[kRuns][kLanes];
  for (int run = 0; run < kRuns; ++run) sort_lanes(lengths[run], lanes[run]);
  const auto items = [&](int column) { return lengths[0][lanes[0][column]]; };
  for (int column = 0; column < kLanes; ++column) starts[lanes[0][column]] = column;
  int most = 0, rank = 0;
  // Lengths decrease with the column number: groups of equal columns, the last group first.
  for (int end = kLanes; end > 0;) {
    int begin = end - 1;
    while (begin > 0 && items(begin - 1) == items(end - 1)) --begin;
    for (int column = begin; column < end; ++column, ++rank) {
      const int lane = lanes[1][rank];
      starts[lane] |= static_cast<uint32_t>(kLineWords * items(column) + column) << 16;
      most = std::max(most, items(column) + lengths[1][lane]);
    }
    end = begin;
  }
  return most;
}

Packer::Packer(int64_t rows, int64_t cols, cpu::Blocks blocks, int item_bytes)
    : rows_(rows),
      cols_(cols),
      blocks_(std::move(blocks)),
      item_bytes_(item_bytes),
      heads_(units(rows, cols) * kHeadLines * kLineWords),
      offsets_(units(rows, cols) + 1) {}

// Calls body(number, unit, values, stride).
template <typename Body>
void Packer::for_each_unit(const Body& body) const {
  const int64_t across = unit_cols(cols_);
  blocks_([&](const cpu::Block& block) {
    for (int64_t row = 0; row < block.rows; row += kUnitRows) {
      for (int64_t col = 0; col < block.cols; col += kUnitCols) {
        const int64_t down = (block.row + row) / kUnitRows, right = (block.col + col) / kUnitCols;
        body(down * across + right, unit_at(down, right, rows_, cols_),
             block.values + row * block.stride + col, block.stride);
      }
    }
  });
}

int64_t Packer::count() {
  const Kernels& own = kernels();
  for_each_unit([&](int64_t index, const Unit& unit, const uint16_t* values, int64_t stride) {
    uint32_t* masks = head(index);
    RunLengths lengths;
    own.read_masks(values, stride, unit.rows, unit.cols, masks);
    own.count_runs(masks, lengths);
    const int items = assign_columns(lengths, masks + kUnitMasks),
              in_word = items_of_word(item_bytes_);
    offsets_[index + 1] = kHeadLines + (items + in_word - 1) / in_word;
  });
  for (size_t i = 1; i < offsets_.size(); ++i) offsets_[i] += offsets_[i - 1];
  return offsets_.back();
}

void Packer::write(int32_t* offsets, uint32_t* lines) const {
  const Kernels& own = kernels();
  for (size_t i = 0; i < offsets_.size(); ++i) offsets[i] = static_cast<int32_t>(offsets_[i]);
  for_each_unit([&](int64_t index, const Unit& unit, const uint16_t* values, int64_t stride) {
    const uint32_t* masks = head(index);
    uint32_t* out = lines + offsets_[index] * kLineWords;
    std::memcpy(out, masks, kHeadLines * kLineBytes);
    const auto value_lines = static_cast<int>(offsets_[index + 1] - offsets_[index]) - kHeadLines;
    own.write_values(values, stride, unit.rows, unit.cols, masks, masks + kUnitMasks, item_bytes_,
                     value_lines, out + kHeadLines * kLineWords);
  });
}

}  // namespace flashsparse::tiled_bitmap
