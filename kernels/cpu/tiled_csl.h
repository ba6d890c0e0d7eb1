// SPDX-License-Identifier: Apache-2.0
// Tiled-CSL on the CPU: turned into the interleaved bitmap that the kernels read, 128 rows at a
// time. Tensors of any origin: every path validates what it reads.
#pragma once
#include <cstdint>
#include <string>

#include "cpu/dtype.h"
#include "pack/tiled_csl.h"

namespace flashsparse::tiled_csl {

// tile_row_values[tile_rows + 1]: the bitmap values before each row of tiles, as the padding rule
// of `pack` promises them. Returns an error where the tile offsets are not sound.
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

// y = x W^T + bias straight from the words, one row of tiles after the other; see
// interleaved_bitmap::linear. Returns the error of `validate`, with y unspecified. A thread needs
// some 270 bytes of scratch per column.
std::string linear(const Packed& packed, Dtype weight_dtype, const void* x, int64_t tokens,
                   const void* bias, void* y, Dtype dtype);

}  // namespace flashsparse::tiled_csl
