// SPDX-License-Identifier: Apache-2.0
// Cases of the drivers that run a kernel on a tiled_bitmap weight only.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>

#include "emulator/driver.h"
#include "formats/tiled_bitmap.h"

namespace driver {

// Bytes of an item, from the environment: 2, or 1 for int8.
inline int item_bytes() {
  const char* const given = std::getenv("ITEM_BYTES");
  return given ? std::atoi(given) : 2;
}

// A weight in tiled_bitmap, and the seed of the schedule.
struct TiledBitmapCase {
  int64_t rows, cols, num_lines, seed, units;
  DeviceArray<int32_t> offsets;
  DeviceArray<uint32_t> packed;
};

// Reads int64 rows, cols, num_lines, seed; int32 offsets[units + 1]; uint32 packed[num_lines][32].
inline std::optional<TiledBitmapCase> read_tiled_bitmap_case() {
  namespace format = flashsparse::tiled_bitmap;
  int64_t header[4];
  if (!read_header(header)) return std::nullopt;
  const auto [rows, cols, num_lines, seed] = header;
  const int64_t units = format::units(rows, cols);
  auto offsets = read<int32_t>(units + 1);
  auto packed = read<uint32_t>(num_lines * format::kLineWords);
  return TiledBitmapCase{rows, cols, num_lines, seed, units, std::move(offsets), std::move(packed)};
}

}  // namespace driver
