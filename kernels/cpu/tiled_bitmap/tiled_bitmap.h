// SPDX-License-Identifier: Apache-2.0
// tiled_bitmap on the CPU: packing from dense weights and from other formats, unpacking, and
// conversion to the interleaved bitmap that the kernels read. `validate` takes tensors of any
// origin; all other readers need tensors that it has found valid.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/blocks.h"
#include "cpu/panels.h"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

// Packs a weight: `count`, then allocate offsets and lines, then `write`. Between the two it keeps
// the heads of the units, about 8% of the dense weight.
class Packer {
 public:
  // `blocks` give the values: marked int8 values (cpu/marked.h) for one-byte items. Blocks begin at
  // units, and end at units or at the edge.
  Packer(int64_t rows, int64_t cols, cpu::Blocks blocks, int item_bytes = 2);

  int64_t count();  // lines
  void write(int32_t* offsets, uint32_t* lines) const;

 private:
  template <typename Body>
  void for_each_unit(const Body& body) const;
  uint32_t* head(int64_t unit) { return heads_.data() + unit * kHeadLines * kLineWords; }
  const uint32_t* head(int64_t unit) const {
    return heads_.data() + unit * kHeadLines * kLineWords;
  }

  int64_t rows_, cols_;
  cpu::Blocks blocks_;
  int item_bytes_;
  std::vector<uint32_t> heads_;
  std::vector<int64_t> offsets_;
};

struct Packed {
  const uint32_t* lines;
  int64_t num_lines;
  const int32_t* offsets;  // [units + 1]
  int64_t rows, cols;
  int item_bytes = 2;  // 1: int8
};

struct Validation {
  int64_t kept = 0;   // values
  std::string error;  // empty if the tensors are valid, else the first rule that they break
};

// Checks that no kernel can access these tensors out of bounds: offsets ascend from 0 to num_lines
// by sizes that a unit may have, no mask keeps a weight past the edges, the runs of a unit are in
// 32 different columns, and they end inside of its lines. Which column a run has, and whether a
// value is zero, is not checked. Writes the number of kept values before each row of units to
// row_kept[unit_rows + 1], unless that is null.
Validation validate(const Packed& packed, int64_t* row_kept = nullptr);

// All that follows needs valid tensors.

// Writes every element of weight[rows, cols], zeros included.
void unpack(const Packed& packed, uint16_t* weight);

// Blocks of `row_units` x `col_units` units of the weight; int8 values are marked.
cpu::Blocks blocks_of(const Packed& packed, int row_units, int col_units);

// Fills masks and values (slack included) of the interleaved bitmap, whose panel offsets are
// row_kept of `validate`. Values are uint16_t, or int8_t. Returns false if masks keep zeros, so
// that there are fewer values than row_kept says: that is no error, use unpack and pack.
bool to_interleaved_bitmap(const Packed& packed, const int64_t* row_kept, uint32_t* masks,
                           void* values);

// y = x W^T + bias directly from the units, as for cpu::LinearProblem; `problem` lacks only the
// size of the weight. A thread needs about 270 bytes of scratch per column.
void linear(const Packed& packed, const cpu::LinearProblem& problem);

}  // namespace flashsparse::tiled_bitmap
