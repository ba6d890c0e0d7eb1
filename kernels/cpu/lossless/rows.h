// SPDX-License-Identifier: Apache-2.0
// Rows to and from chunks, written so that the compiler vectorizes it, and compiled in each folder
// with its own flags. Everything has internal linkage (see README.md).
#pragma once
#include <cstdint>

#include "formats/lossless.h"

namespace {

using flashsparse::lossless::kChunkBytes;
using flashsparse::lossless::kChunkCodes;
using flashsparse::lossless::kChunkColumns;
using flashsparse::lossless::kMostCode;

// Unsigned 16-bit arithmetic throughout, without a branch: `bits` is one whole chunk.
inline void pack_chunk(const uint16_t* bits, uint16_t base, uint8_t* out) {
  uint8_t codes[kChunkColumns];
  for (int j = 0; j < kChunkColumns; ++j) {
    const uint16_t above = static_cast<uint16_t>((bits[j] >> 7 & 0xff) - base);
    const uint16_t code = static_cast<uint16_t>(above <= kMostCode ? above : 0);
    const bool kept = code != 0 || (bits[j] & 0x7fff) == 0;
    const uint16_t byte = static_cast<uint16_t>((bits[j] >> 8 & 0x80) | (bits[j] & 0x7f));
    out[j] = static_cast<uint8_t>(kept ? byte : 0);
    codes[j] = static_cast<uint8_t>(code);
  }
  for (int j = 0; j < kChunkCodes; ++j) {
    out[kChunkColumns + j] = static_cast<uint8_t>(codes[j] | codes[kChunkCodes + j] << 4);
  }
}

inline void unpack_chunk(const uint8_t* chunk, uint16_t base, uint16_t* bits) {
  for (int half = 0; half < 2; ++half) {
    for (int j = 0; j < kChunkCodes; ++j) {
      const uint16_t byte = chunk[half * kChunkCodes + j];
      const uint16_t code = static_cast<uint16_t>(chunk[kChunkColumns + j] >> 4 * half & 0xf);
      const uint16_t exponent = static_cast<uint16_t>(code ? base + code : 0);
      bits[half * kChunkCodes + j] =
          static_cast<uint16_t>((byte & 0x80) << 8 | exponent << 7 | (byte & 0x7f));
    }
  }
}

void pack_row(const uint16_t* row, int64_t columns, uint32_t base, uint8_t* out) {
  int64_t first = 0;
  for (; first + kChunkColumns <= columns; first += kChunkColumns, out += kChunkBytes) {
    pack_chunk(row + first, static_cast<uint16_t>(base), out);
  }
  if (first == columns) return;
  uint16_t rest[kChunkColumns] = {};
  for (int64_t j = first; j < columns; ++j) rest[j - first] = row[j];
  pack_chunk(rest, static_cast<uint16_t>(base), out);
}

void unpack_row(const uint8_t* row, int64_t columns, uint32_t base, uint16_t* out) {
  int64_t first = 0;
  for (; first + kChunkColumns <= columns; first += kChunkColumns, row += kChunkBytes) {
    unpack_chunk(row, static_cast<uint16_t>(base), out + first);
  }
  if (first == columns) return;
  uint16_t rest[kChunkColumns];
  unpack_chunk(row, static_cast<uint16_t>(base), rest);
  for (int64_t j = first; j < columns; ++j) out[j] = rest[j - first];
}

}  // namespace
