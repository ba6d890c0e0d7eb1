// SPDX-License-Identifier: Apache-2.0
// How nm_vector's CUDA packer divides a weight, and how a block reports where it breaks its
// pattern.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

#include "formats/nm_vector.h"

namespace flashsparse::nm_vector {

inline constexpr int kPackThreads = 256;
inline constexpr int kLoadRows = 8;           // that a warp reads at once
inline constexpr int kTileGroups = 16;        // of a tile at most
inline constexpr int kTileColumns = 1024;     // of a tile at most
inline constexpr int kTileWeights = 1 << 14;  // of a tile, approximately

// What a block packs: whole groups of rows, and windows that take whole bytes of the index.
struct PackTile {
  int groups, windows;

  static constexpr PackTile of(const Pattern& pattern) {
    const int m = static_cast<int>(pattern.m), length = static_cast<int>(pattern.length);
    const int groups = std::max(kTileGroups / length, 1);
    int least = 1;
    while (least * pattern.n * pattern.index_bits() % 8 != 0) least *= 2;
    const int columns = std::max(kTileWeights / (groups * length), kTileColumns / 4);
    return {groups, least * std::max(columns / (least * m), 1)};
  }

  constexpr int64_t down(const Pattern& pattern, int64_t rows) const {
    return (pattern.groups(rows) + groups - 1) / groups;
  }
  FS_HOST_DEVICE constexpr int64_t across(const Pattern& pattern, int64_t cols) const {
    return (pattern.windows(cols) + windows - 1) / windows;
  }
  constexpr int64_t tiles(const Pattern& pattern, int64_t rows, int64_t cols) const {
    return down(pattern, rows) * across(pattern, cols);
  }
  // For the list of the tile's entries.
  constexpr int shared_bytes(const Pattern& pattern) const {
    return groups * windows * static_cast<int>(pattern.n) * static_cast<int>(sizeof(uint16_t));
  }
};

// The first window of a tile that keeps too much and the number of its columns with nonzeros, in
// one number that is smaller for earlier windows; kNoBreach if there is none.
inline constexpr int32_t kNoBreach = INT32_MAX;
FS_HOST_DEVICE constexpr int32_t breach_of(int group, int windows, int window, int columns) {
  return (group * windows + window) << 9 | columns;
}

// The first breach of the weight, by group and then by window, from those of all tiles.
inline std::optional<Breach> first_breach(const int32_t* breaches, const PackTile& tile,
                                          int64_t tiles, int64_t across) {
  std::optional<Breach> first;
  for (int64_t i = 0; i < tiles; ++i) {
    if (breaches[i] == kNoBreach) continue;
    const int place = breaches[i] >> 9;
    const Breach found{i / across * tile.groups + place / tile.windows,
                       i % across * tile.windows + place % tile.windows, breaches[i] & 511};
    if (!first || found.group < first->group ||
        (found.group == first->group && found.window < first->window)) {
      first = found;
    }
  }
  return first;
}

}  // namespace flashsparse::nm_vector
