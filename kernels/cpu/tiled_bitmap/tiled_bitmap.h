// SPDX-License-Identifier: Apache-2.0
// tiled_bitmap on the CPU: made from dense weights and from other formats, turned back, and turned
// into the interleaved bitmap that the kernels read. `validate` takes tensors of any origin, and
// all other readers want tensors that it has found valid.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/blocks.h"
#include "cpu/panels.h"
#include "formats/tiled_bitmap.h"

namespace flashsparse::tiled_bitmap {

// A weight on its way to this format: `count`, memory for offsets and lines, `write`. Between the
// two it keeps the heads of the units, some 8% of the dense weight.
class Packer {
 public:
  // Of the values that `blocks` give, marked codes (cpu/marked.h) for items of one byte. Blocks
  // begin where a unit does, and end where one does or at the edge.
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
  int item_bytes = 2;  // 1: of codes
};

struct Validation {
  int64_t kept = 0;   // values
  std::string error;  // empty where the tensors are valid, else the first rule they break
};

// Proves that no kernel can read or write out of bounds on these tensors: offsets rise from 0 to
// num_lines by what a unit may have, no mask keeps a weight beyond the edges, the runs of a unit
// are in 32 different columns, and they end inside its lines. Which column a run has is not asked,
// and neither is whether a value is zero. Writes the kept values before each row of units to
// row_kept[unit_rows + 1], if that is not null.
Validation validate(const Packed& packed, int64_t* row_kept = nullptr);

// The rest wants valid tensors.

// Writes every element of weight[rows, cols], zeros included.
void unpack(const Packed& packed, uint16_t* weight);

// Blocks of `row_units` x `col_units` units of the weight; of codes, marked.
cpu::Blocks blocks_of(const Packed& packed, int row_units, int col_units);

// Masks and values (slack included) of the interleaved bitmap, from the row_kept of `validate`,
// which are its panel offsets. Values are uint16_t, or int8_t of codes. Returns false where the
// masks keep zeros, so that there are fewer values than they promise: nothing is wrong, use unpack
// and pack.
bool to_interleaved_bitmap(const Packed& packed, const int64_t* row_kept, uint32_t* masks,
                           void* values);

// y = x W^T + bias straight from the units, as cpu::LinearProblem says, of which all but the size
// of the weight is given. A thread needs some 270 bytes of scratch per column.
void linear(const Packed& packed, const cpu::LinearProblem& problem);

}  // namespace flashsparse::tiled_bitmap
