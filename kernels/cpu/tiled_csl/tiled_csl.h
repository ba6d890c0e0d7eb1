// SPDX-License-Identifier: Apache-2.0
// Tiled-CSL on the CPU: packing, unpacking, conversion to the interleaved bitmap that the kernels
// read, and the product. Dense weights are row-major 16-bit values [rows, cols]. Every reader takes
// tensors of any origin, and validates what it reads.
#pragma once
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "cpu/blocks.h"

namespace flashsparse::tiled_csl {

// The blocks in which the packer reads a dense weight. Those of other sources begin at tiles, and
// end at tiles or at the edge.
inline constexpr int64_t kBlockRows = 128, kBlockCols = 512;

// Computes offsets[tiles + 1], offsets[0] = 0: the prefix sum of the words of every tile of
// weight[rows, cols], padded to kWordAlignment.
void count(const cpu::Blocks& blocks, int64_t rows, int64_t cols, int64_t* offsets);

// Fills words[offsets[tiles]] in canonical order, with `offsets` from `count`.
void pack(const cpu::Blocks& blocks, int64_t rows, int64_t cols, const int32_t* offsets,
          uint32_t* words);

struct Packed {  // tensors of any origin: only the two array lengths are trusted
  const uint32_t* words;
  int64_t num_words;
  const int32_t* offsets;  // [tile_rows(rows) * tile_cols(cols) + 1]
  int64_t rows, cols;
};

struct Validation {
  int64_t nonzeros = 0;  // distinct locations with a nonzero value
  std::string error;     // empty if the tensors are valid, else the first rule that they break
};

// Checks that no kernel can access these tensors out of bounds, and that the order of words cannot
// change a result: offsets ascend from 0 to num_words in multiples of kWordAlignment, every
// location is inside of its (possibly cut) tile, and words that share a location are equal.
Validation validate(const Packed& packed);

// Writes every element of weight[rows, cols], zeros included, and validates it meanwhile. After an
// error the weight is unspecified.
Validation unpack(const Packed& packed, uint16_t* weight);

// Blocks of 128 rows and `wide` columns, a multiple of 64, of tensors that `validate` has found
// valid.
cpu::Blocks blocks_of(const Packed& packed, int64_t wide);

// tile_row_values[tile_rows + 1]: the number of values before each tile row, if padding is as
// `pack` writes it. Returns an error if the tile offsets are invalid.
std::string count_values(const Packed& packed, int64_t* tile_row_values);

struct Transcoding {
  std::string error;  // that of `validate`
  // False if a tile has fewer values than count_values says (words that repeat in the middle of a
  // tile, or hold a zero). That is no error: use unpack and pack.
  bool counted = false;
};

// One pass from words to masks, values (slack included) and panel_offsets. A thread needs 256 bytes
// of scratch per column.
Transcoding to_interleaved_bitmap(const Packed& packed, const int64_t* tile_row_values,
                                  uint32_t* masks, uint16_t* values, int64_t* panel_offsets);

// y = x W^T + bias directly from the words, tile row by tile row, as for cpu::LinearProblem.
// Returns the error of `validate`, with y unspecified. A thread needs about 270 bytes of scratch
// per column.
std::string linear(const Packed& packed, Dtype weight_dtype, const void* x, int64_t tokens,
                   const void* bias, void* y, Dtype dtype);

}  // namespace flashsparse::tiled_csl
