// SPDX-License-Identifier: Apache-2.0
#include "pack/tiled_csl.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "common/parallel.h"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {
namespace {

struct Tile {  // the part of the weight that a tile covers
  int64_t row, col;
  int rows, cols;
};

Tile tile_at(int64_t index, int64_t rows, int64_t cols) {
  const int64_t across = tile_cols(cols);
  const int64_t row = index / across * kTileRows, col = index % across * kTileCols;
  return {row, col, static_cast<int>(std::min<int64_t>(kTileRows, rows - row)),
          static_cast<int>(std::min<int64_t>(kTileCols, cols - col))};
}

// Orders the words of one tile so that 32 consecutive ones fall into different banks as far as the
// tile allows (Flash-LLM, Algorithm 3): every group takes one word of each bank that has any left,
// and fills up from the fullest banks.
int64_t order_by_bank(std::array<std::vector<uint32_t>, kBanks>& banks, uint32_t* words) {
  std::array<size_t, kBanks> taken{};
  auto left = [&](int bank) { return banks[bank].size() - taken[bank]; };
  uint32_t* out = words;
  for (size_t total = 0;; total = 0) {
    for (int bank = 0; bank < kBanks; ++bank) total += left(bank);
    if (total == 0) break;
    const size_t group = std::min<size_t>(total, kBanks);
    size_t filled = 0;
    for (int bank = 0; bank < kBanks && filled < group; ++bank) {
      if (left(bank)) *out++ = banks[bank][taken[bank]++], ++filled;
    }
    while (filled < group) {
      int fullest = 0;
      for (int bank = 1; bank < kBanks; ++bank) {
        if (left(bank) > left(fullest)) fullest = bank;
      }
      *out++ = banks[fullest][taken[fullest]++], ++filled;
    }
  }
  return out - words;
}

}  // namespace

void count(const uint16_t* weight, int64_t rows, int64_t cols, int64_t* offsets) {
  const int64_t tiles = tile_rows(rows) * tile_cols(cols);
  parallel_chunks(tiles, [&](int64_t index) {
    const Tile tile = tile_at(index, rows, cols);
    int64_t nonzeros = 0;
    for (int r = 0; r < tile.rows; ++r) {
      const uint16_t* line = weight + (tile.row + r) * cols + tile.col;
      for (int c = 0; c < tile.cols; ++c) nonzeros += !is_zero(line[c]);
    }
    offsets[index + 1] = (nonzeros + kWordAlignment - 1) / kWordAlignment * kWordAlignment;
  });
  offsets[0] = 0;
  for (int64_t index = 0; index < tiles; ++index) offsets[index + 1] += offsets[index];
}

void pack(const uint16_t* weight, int64_t rows, int64_t cols, const int32_t* offsets,
          uint32_t* words) {
  parallel_chunks(tile_rows(rows) * tile_cols(cols), [&](int64_t index) {
    const Tile tile = tile_at(index, rows, cols);
    std::array<std::vector<uint32_t>, kBanks> banks;
    for (int r = 0; r < tile.rows; ++r) {
      const uint16_t* line = weight + (tile.row + r) * cols + tile.col;
      for (int c = 0; c < tile.cols; ++c) {
        if (is_zero(line[c])) continue;
        const uint32_t place = location(r, c);
        banks[bank_of(place)].push_back(make_word(line[c], place));
      }
    }
    uint32_t* out = words + offsets[index];
    const int64_t count = order_by_bank(banks, out);
    // Padding repeats a word of the same tile: storing it twice changes nothing.
    std::fill(out + count, words + offsets[index + 1], count ? out[0] : 0);
  });
}

void unpack(const uint32_t* words, const int32_t* offsets, int64_t rows, int64_t cols,
            uint16_t* weight) {
  std::memset(weight, 0, static_cast<size_t>(rows) * cols * sizeof(uint16_t));
  parallel_chunks(tile_rows(rows) * tile_cols(cols), [&](int64_t index) {
    const Tile tile = tile_at(index, rows, cols);
    for (int32_t i = offsets[index]; i < offsets[index + 1]; ++i) {
      const uint32_t place = location_of(words[i]);
      weight[(tile.row + row_of(place)) * cols + tile.col + col_of(place)] = bits_of(words[i]);
    }
  });
}

Validation validate(const uint32_t* words, int64_t num_words, const int32_t* offsets, int64_t rows,
                    int64_t cols) {
  const int64_t tiles = tile_rows(rows) * tile_cols(cols);
  if (offsets[0] != 0) return {0, "tile_offsets[0] is " + std::to_string(offsets[0]) + ", not 0"};
  for (int64_t index = 0; index < tiles; ++index) {
    const std::string at = "tile_offsets[" + std::to_string(index + 1) + "] = " +
                           std::to_string(offsets[index + 1]);
    if (offsets[index + 1] < offsets[index]) return {0, at + " is smaller than the one before"};
    if (offsets[index + 1] % kWordAlignment) return {0, at + " is no multiple of 4"};
  }
  if (offsets[tiles] != num_words) {
    return {0, "tile_offsets ends at " + std::to_string(offsets[tiles]) + " words, weight_packed has " +
                   std::to_string(num_words)};
  }
  Validation result;
  for (int64_t index = 0; index < tiles; ++index) {
    const Tile tile = tile_at(index, rows, cols);
    std::array<uint32_t, kTileElements> seen{};  // 1 << 16 | bits of the element at each location
    for (int32_t i = offsets[index]; i < offsets[index + 1]; ++i) {
      const uint32_t place = location_of(words[i]), value = bits_of(words[i]);
      const std::string at = "weight_packed[" + std::to_string(i) + "] of tile " + std::to_string(index);
      if (place >= kTileElements || row_of(place) >= static_cast<uint32_t>(tile.rows) ||
          col_of(place) >= static_cast<uint32_t>(tile.cols)) {
        return {0, at + " points outside its tile (location " + std::to_string(place) + ")"};
      }
      if (seen[place] && seen[place] != (1u << 16 | value)) {
        return {0, at + " gives a second value to location " + std::to_string(place)};
      }
      if (!seen[place]) result.nonzeros += !is_zero(value);
      seen[place] = 1u << 16 | value;
    }
  }
  return result;
}

}  // namespace flashsparse::tiled_csl
