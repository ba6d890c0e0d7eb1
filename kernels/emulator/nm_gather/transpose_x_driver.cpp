// SPDX-License-Identifier: Apache-2.0
// Runs transpose_x over every case on stdin and writes x_tiles to stdout.
//   case    int64 tokens, x_stride, columns, blocks of tiles, seed; uint16 x[tokens][x_stride]
//   answer  uint16 x_tiles[ceil(tokens / 64)][columns][64]
#include <cstdint>
#include <cstring>

#include "cuda/nm_gather/transpose_x.cuh"
#include "emulator/driver.h"

int main(int argc, char** argv) {
  using namespace flashsparse::nm_gather;
  const driver::Counting counting(argc, argv);
  int64_t header[5];
  while (driver::read_header(header)) {
    const auto [tokens, x_stride, columns, tile_blocks, seed] = header;
    const auto x = driver::read<uint16_t>(tokens * x_stride);
    const int64_t tiles = x_tile_count(tokens), size = tiles * columns * kTileTokens;
    const auto x_tiles = driver::device_array<uint16_t>(size);
    std::memset(x_tiles.get(), 0xff, size * sizeof(uint16_t));
    simt::launch({static_cast<unsigned>(ceil_div(columns, kTransposeColumns)),
                  static_cast<unsigned>(tile_blocks)},
                 kTransposeThreads, 0, seed, [&] {
                   transpose_x_kernel(x.get(), x_stride, tokens, tiles, columns, x_tiles.get());
                 });
    driver::write(x_tiles.get(), size);
  }
}
