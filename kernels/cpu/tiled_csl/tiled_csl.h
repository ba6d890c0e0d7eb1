// SPDX-License-Identifier: Apache-2.0
// Tiled-CSL on the CPU: made from dense weights and turned back, turned into the interleaved bitmap
// that the kernels read, and multiplied. Dense weights are row-major 16-bit values [rows, cols].
// Every reader takes tensors of any origin and validates what it reads.
#pragma once
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "cpu/blocks.h"

namespace flashsparse::tiled_csl {

// What the packer reads at a time of a dense weight; of any other, blocks that begin where a tile
// does, and end where one does or at the edge.
inline constexpr int64_t kBlockRows = 128, kBlockCols = 512;

// Words of every tile of weight[rows, cols], padded to kWordAlignment, summed up:
// offsets[tiles + 1], offsets[0] = 0.
void count(const cpu::Blocks& blocks, int64_t rows, int64_t cols, int64_t* offsets);

// Fills words[offsets[tiles]] in canonical order; `offsets` as `count` made them.
void pack(const cpu::Blocks& blocks, int64_t rows, int64_t cols, const int32_t* offsets,
          uint32_t* words);

struct Packed {  // tensors of any origin: nothing but the two array lengths is trusted
  const uint32_t* words;
  int64_t num_words;
  const int32_t* offsets;  // [tile_rows(rows) * tile_cols(cols) + 1]
  int64_t rows, cols;
};

struct Validation {
  int64_t nonzeros = 0;  // distinct locations with a value other than zero
  std::string error;     // empty where the tensors are valid, else the first rule they break
};

// Proves that no kernel can read or write out of bounds on these tensors, and that the order of
// words cannot change a result: offsets rise from 0 to num_words in steps of kWordAlignment, every
// location lies inside its (possibly cut) tile, and words that share a location are equal.
Validation validate(const Packed& packed);

// Writes every element of weight[rows, cols], zeros included, and validates on the way. Where there
// is an error, what was written is unspecified.
Validation unpack(const Packed& packed, uint16_t* weight);

// Blocks of 128 rows and `wide` columns, a multiple of 64, of tensors that `validate` has found
// valid.
cpu::Blocks blocks_of(const Packed& packed, int64_t wide);

// tile_row_values[tile_rows + 1]: the bitmap values before each row of tiles, as the padding rule
// of `pack` promises them. Returns an error where the tile offsets are invalid.
std::string count_values(const Packed& packed, int64_t* tile_row_values);

struct Transcoding {
  std::string error;     // as of `validate`
  bool counted = false;  // false where the promised counts were wrong (words that repeat in the
                         // middle of a tile, or hold a zero): nothing is wrong, use unpack and pack
};

// One pass from words to masks, values (slack included) and panel_offsets. A thread needs 256 bytes
// of scratch per column.
Transcoding to_interleaved_bitmap(const Packed& packed, const int64_t* tile_row_values,
                                  uint32_t* masks, uint16_t* values, int64_t* panel_offsets);

// y = x W^T + bias straight from the words, one row of tiles after the other, as cpu::LinearProblem
// says. Returns the error of `validate`, with y unspecified. A thread needs some 270 bytes of
// scratch per column.
std::string linear(const Packed& packed, Dtype weight_dtype, const void* x, int64_t tokens,
                   const void* bias, void* y, Dtype dtype);

}  // namespace flashsparse::tiled_csl
