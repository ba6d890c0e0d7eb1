// SPDX-License-Identifier: Apache-2.0
// Tiled-CSL, version 1: the bit layout that packer, CPU and CUDA kernels share.
// Flash-LLM (Xia et al., VLDB 2024), section 4.3.1 (the format) and 4.3.3 (ahead-of-time sparse
// data reordering); docs/formats.md is our specification.
//
// The weight [out_features, in_features] is divided into tiles of 128 rows x 64 columns, in
// row-major order. A word is one kept element: its 16 value bits above its 16-bit location. The
// location is the element's offset in a 128x64 tile in shared memory whose 16-byte chunks are
// XOR-swizzled by the row, so that a GPU kernel stores it without address arithmetic and reads the
// tile back without bank conflicts.
//
// Order of the words of a tile (canonical: every packer writes the same file)
//   The GPU stores 32 consecutive words at once. Two of them conflict if they are in the same bank
//   but not in the same 4 bytes of it. If both elements at locations 2i and 2i + 1 are kept, they
//   are called a pair, otherwise the kept one is called a single. A bank has a queue of singles and
//   a queue of pairs, each by location. The tile is written in groups of 32 words, the last one
//   shorter, and a group in rounds until it is full:
//     1. The banks that have words left join; if they are more than the free places in the group,
//     the
//        fullest do. "Fullest" is by number of words left, equal ones by bank number.
//     2. Each joining bank gives one word: its next single, or, without singles, the lower half of
//        its next pair, whose upper half is its next single from then on. But while places would
//        stay empty, the fullest joining banks that have a pair give both halves instead.
//     3. The words of the round are written by bank number, lower halves first.
//   So a group has 32 different banks as long as all have words, and once some have run out, pairs
//   fill the gap without a conflict: 1.01 / 1.03 / 1.12 / 1.32 store cycles a group on random
//   weights with 50 / 70 / 80 / 90% zeros (at least 1.00 / 1.02 / 1.12 / 1.30 are needed), where
//   Flash-LLM's Algorithm 3, which knows no pairs, takes 1.15 / 1.23 / 1.33 / 1.49.
//   Padding repeats the last word.
#pragma once
#include <cstdint>

#include "common/host_device.h"
#include "formats/zero.h"

namespace flashsparse::tiled_csl {

inline constexpr int kTileRows = 128;
inline constexpr int kTileCols = 64;
inline constexpr int kTileElements = kTileRows * kTileCols;
inline constexpr int kWordAlignment = 4;  // offsets count words; a tile is 16-byte aligned
inline constexpr int kBanks = 32;         // of a GPU's shared memory, 4 bytes wide

FS_HOST_DEVICE constexpr uint32_t location(uint32_t row, uint32_t col) {
  return row * kTileCols + ((((col >> 3) ^ (row & 7)) << 3) | (col & 7));
}
FS_HOST_DEVICE constexpr uint32_t row_of(uint32_t location) { return location / kTileCols; }
FS_HOST_DEVICE constexpr uint32_t col_of(uint32_t location) {
  return (location ^ ((location >> 3) & 0x38)) % kTileCols;
}
FS_HOST_DEVICE constexpr uint32_t bank_of(uint32_t location) { return (location / 2) % kBanks; }

FS_HOST_DEVICE constexpr uint32_t make_word(uint16_t bits, uint32_t location) {
  return static_cast<uint32_t>(bits) << 16 | location;
}
FS_HOST_DEVICE constexpr uint16_t bits_of(uint32_t word) {
  return static_cast<uint16_t>(word >> 16);
}
FS_HOST_DEVICE constexpr uint32_t location_of(uint32_t word) { return word & 0xffff; }

FS_HOST_DEVICE constexpr int64_t tile_rows(int64_t out_features) {
  return (out_features + kTileRows - 1) / kTileRows;
}
FS_HOST_DEVICE constexpr int64_t tile_cols(int64_t in_features) {
  return (in_features + kTileCols - 1) / kTileCols;
}

}  // namespace flashsparse::tiled_csl
