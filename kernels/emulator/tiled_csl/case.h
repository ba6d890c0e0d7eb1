// SPDX-License-Identifier: Apache-2.0
// Cases of the drivers that run a kernel on a Tiled-CSL weight only.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>

#include "emulator/driver.h"
#include "formats/tiled_csl.h"

namespace driver {

// A weight in Tiled-CSL, and the seed of the schedule.
struct TiledCslCase {
  int64_t rows, cols, num_words, seed, tiles;
  DeviceArray<int32_t> offsets;
  DeviceArray<uint32_t> words;
};

// Reads int64 rows, cols, num_words, seed; int32 offsets[tiles + 1]; uint32 words[num_words].
inline std::optional<TiledCslCase> read_tiled_csl_case() {
  int64_t header[4];
  if (!read_header(header)) return std::nullopt;
  const auto [rows, cols, num_words, seed] = header;
  const int64_t tiles =
      flashsparse::tiled_csl::tile_rows(rows) * flashsparse::tiled_csl::tile_cols(cols);
  auto offsets = read<int32_t>(tiles + 1);
  auto words = read<uint32_t>(num_words);
  return TiledCslCase{rows, cols, num_words, seed, tiles, std::move(offsets), std::move(words)};
}

}  // namespace driver
