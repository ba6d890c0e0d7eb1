// SPDX-License-Identifier: Apache-2.0
// The tiles of a weight: their position, and how one is read from words of any origin.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "common/parallel.h"
#include "cpu/first_bad.h"
#include "cpu/tiled_csl/tiled_csl.h"
#include "formats/tiled_csl.h"
#include "formats/tiled_csl_errors.h"

namespace flashsparse::tiled_csl {

struct Tile {  // the part of the weight that a tile covers
  int64_t row, col;
  int rows, cols;
};

inline Tile tile_at(int64_t index, int64_t rows, int64_t cols) {
  const int64_t across = tile_cols(cols);
  const int64_t row = index / across * kTileRows, col = index % across * kTileCols;
  return {row, col, static_cast<int>(std::min<int64_t>(kTileRows, rows - row)),
          static_cast<int>(std::min<int64_t>(kTileCols, cols - col))};
}

// Calls body(index, tile) for every tile, in parallel, in chunks of adjacent tiles.
template <typename Body>
void for_each_tile(int64_t rows, int64_t cols, const Body& body) {
  constexpr int64_t kRun = 8;
  const int64_t tiles = tile_rows(rows) * tile_cols(cols);
  parallel_chunks((tiles + kRun - 1) / kRun, [&](int64_t chunk) {
    const int64_t end = std::min(tiles, (chunk + 1) * kRun);
    for (int64_t index = chunk * kRun; index < end; ++index) {
      body(index, tile_at(index, rows, cols));
    }
  });
}

// The first rule that the offsets break, or nothing. Everything below needs valid offsets.
inline std::string check_offsets(const Packed& packed) {
  const int64_t tiles = tile_rows(packed.rows) * tile_cols(packed.cols);
  return offsets_error(packed.offsets, tiles, packed.num_words);
}

// The distinct words of a tile as `pack` writes it: those that do not repeat the last one. Right
// for the output of any packer; for anything else TileReader finds out.
inline int64_t words_without_padding(const uint32_t* words, int64_t count) {
  int64_t padding = 0;
  while (padding < kWordAlignment - 1 && padding + 1 < count &&
         words[count - 2 - padding] == words[count - 1]) {
    ++padding;
  }
  return count - padding;
}

// Validates one tile exactly, and slowly; returns the first rule that it breaks.
inline std::string check_tile(const Packed& packed, int64_t index) {
  const int64_t begin = packed.offsets[index], end = packed.offsets[index + 1];
  return tile_error(packed.words + begin, begin, end, index, packed.rows, packed.cols);
}

// Reads tiles, one after the other, into a dense tile in location order.
class TileReader {
 public:
  explicit TileReader(const Packed& packed) : packed_(packed) {}

  // Scatters the words of tile `index`. Memory-safe for any content; `valid` detects locations
  // outside of the dense tile.
  void scatter(int64_t index) {
    words_ = packed_.words + packed_.offsets[index];
    count_ = packed_.offsets[index + 1] - packed_.offsets[index];
    std::memset(dense_, 0, sizeof dense_);
    uint32_t all_bits = 0;
    for (int64_t i = 0; i < count_; ++i) {
      const uint32_t place = location_of(words_[i]);
      all_bits |= place;
      dense_[place % kTileElements] = bits_of(words_[i]);
    }
    in_range_ = all_bits < kTileElements;
  }

  // Whether the words that were scattered last obey all rules, given the nonzeros that they left
  // inside of the tile's edges. If there are as many nonzeros as words, without padding, every word
  // has its own location inside of the edges; only if the counts differ are the words checked one
  // by one.
  bool valid(int64_t index, int64_t nonzeros) const {
    if (in_range_ && nonzeros == words_without_padding(words_, count_)) return true;
    return check_tile(packed_, index).empty();
  }

  const uint16_t* dense() const { return dense_; }

 private:
  const Packed& packed_;
  const uint32_t* words_ = nullptr;
  int64_t count_ = 0;
  bool in_range_ = true;
  alignas(64) uint16_t dense_[kTileElements];
};

// The error in the first bad tile, or nothing.
inline std::string error_of(const cpu::FirstBad& bad, const Packed& packed) {
  return bad.none() ? std::string() : check_tile(packed, bad.index());
}

}  // namespace flashsparse::tiled_csl
