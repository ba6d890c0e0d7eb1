// SPDX-License-Identifier: Apache-2.0
// Error messages for invalid Tiled-CSL tensors, for every device.
#pragma once
#include <string>
#include <vector>

#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {

// The first rule that offsets [tiles + 1] break, or nothing.
inline std::string offsets_error(const int32_t* offsets, int64_t tiles, int64_t num_words) {
  if (offsets[0] != 0) return "tile_offsets[0] is " + std::to_string(offsets[0]) + ", not 0";
  for (int64_t index = 1; index <= tiles; ++index) {
    const bool falls = offsets[index] < offsets[index - 1];
    if (!falls && offsets[index] % kWordAlignment == 0) continue;
    return "tile_offsets[" + std::to_string(index) + "] = " + std::to_string(offsets[index]) +
           (falls ? " is smaller than the one before" : " is no multiple of 4");
  }
  if (offsets[tiles] != num_words) {
    return "tile_offsets ends at " + std::to_string(offsets[tiles]) + " words, weight_packed has " +
           std::to_string(num_words);
  }
  return {};
}

// The first rule that the words of a tile break, or nothing. `begin` and `end` are the tile's
// offsets; words[0] is its first word.
inline std::string tile_error(const uint32_t* words, int64_t begin, int64_t end, int64_t tile,
                              int64_t rows, int64_t cols) {
  const int64_t across = tile_cols(cols);
  const int64_t rows_here = rows - tile / across * kTileRows;
  const int64_t cols_here = cols - tile % across * kTileCols;
  std::vector<uint32_t> seen(kTileElements);  // 1 << 16 | bits of the element at each location
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t word = words[i - begin], place = location_of(word);
    const bool outside =
        place >= kTileElements || row_of(place) >= rows_here || col_of(place) >= cols_here;
    const uint32_t value = 1u << 16 | bits_of(word);
    if (outside || (seen[place] && seen[place] != value)) {
      const std::string at =
          "weight_packed[" + std::to_string(i) + "] of tile " + std::to_string(tile);
      const std::string where = std::to_string(place);
      return outside ? at + " points outside its tile (location " + where + ")"
                     : at + " gives a second value to location " + where;
    }
    seen[place] = value;
  }
  return {};
}

}  // namespace flashsparse::tiled_csl
