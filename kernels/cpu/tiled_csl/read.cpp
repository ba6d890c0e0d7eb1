// SPDX-License-Identifier: Apache-2.0
// Reads Tiled-CSL of any origin: validates it, and unpacks it to a dense weight.
#include <atomic>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/kernels.h"
#include "cpu/tiled_csl/tile.h"
#include "cpu/tiled_csl/tiled_csl.h"
#include "formats/tiled_csl.h"

namespace flashsparse::tiled_csl {
namespace {

// Nonzeros inside of the edges of a tile, whose elements are in location order.
int64_t nonzeros_inside(const cpu::Kernels& kernels, const uint16_t* dense, const Tile& tile) {
  if (tile.rows == kTileRows && tile.cols == kTileCols) {
    return kernels.count_nonzeros(dense, kTileElements);
  }
  int64_t nonzeros = 0;
  for (int r = 0; r < tile.rows; ++r) {
    for (int c = 0; c < tile.cols; ++c) {
      nonzeros += !is_zero(dense[location(static_cast<uint32_t>(r), static_cast<uint32_t>(c))]);
    }
  }
  return nonzeros;
}

// Copies a tile from location order to rows `stride` apart.
void copy_rows(const uint16_t* dense, const Tile& tile, uint16_t* to, int64_t stride) {
  constexpr int kChunk = 8;  // columns that the swizzle keeps together
  for (int r = 0; r < tile.rows; ++r) {
    uint16_t* out = to + r * stride;
    for (int c = 0; c < tile.cols; c += kChunk) {
      const int width = std::min(kChunk, tile.cols - c);
      const uint16_t* chunk = dense + location(static_cast<uint32_t>(r), static_cast<uint32_t>(c));
      if (width == kChunk) {
        std::memcpy(out + c, chunk, kChunk * sizeof *out);
      } else {
        std::memcpy(out + c, chunk, width * sizeof *out);
      }
    }
  }
}

// Reads every tile, validates it, and calls consume(dense, tile).
template <typename Consume>
Validation read(const Packed& packed, const Consume& consume) {
  std::string error = check_offsets(packed);
  if (!error.empty()) return {0, std::move(error)};
  const cpu::Kernels& kernels = cpu::kernels();
  std::atomic<int64_t> nonzeros{0};
  cpu::FirstBad bad;
  for_each_tile(packed.rows, packed.cols, [&](int64_t index, const Tile& tile) {
    TileReader reader(packed);
    reader.scatter(index);
    const int64_t kept = nonzeros_inside(kernels, reader.dense(), tile);
    if (!reader.valid(index, kept)) return bad.report(index);
    nonzeros.fetch_add(kept, std::memory_order_relaxed);
    consume(reader.dense(), tile);
  });
  return {nonzeros.load(), error_of(bad, packed)};
}

}  // namespace

Validation validate(const Packed& packed) {
  return read(packed, [](const uint16_t*, const Tile&) {});
}

Validation unpack(const Packed& packed, uint16_t* weight) {
  return read(packed, [&](const uint16_t* dense, const Tile& tile) {
    copy_rows(dense, tile, weight + tile.row * packed.cols + tile.col, packed.cols);
  });
}

cpu::Blocks blocks_of(const Packed& packed, int64_t wide) {
  return [=](const std::function<void(const cpu::Block&)>& consume) {
    const int64_t across = tile_cols(packed.cols), wide_tiles = wide / kTileCols;
    parallel_chunks(tile_rows(packed.rows), [&](int64_t tile_row) {
      static thread_local AlignedBuffer buffer;
      uint16_t* block = buffer.get<uint16_t>(kTileRows * wide);
      TileReader reader(packed);
      for (int64_t first = 0; first < across; first += wide_tiles) {
        cpu::Block made{tile_row * kTileRows, first * kTileCols, 0, 0, block, wide};
        for (int64_t t = first; t < std::min(across, first + wide_tiles); ++t) {
          const Tile tile = tile_at(tile_row * across + t, packed.rows, packed.cols);
          reader.scatter(tile_row * across + t);
          copy_rows(reader.dense(), tile, block + (t - first) * kTileCols, wide);
          made.rows = tile.rows;
          made.cols += tile.cols;
        }
        consume(made);
      }
    });
  };
}

}  // namespace flashsparse::tiled_csl
