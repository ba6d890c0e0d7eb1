// SPDX-License-Identifier: Apache-2.0
// Runs the pack kernels over every case on stdin and writes their results to stdout.
//   case    int64 rows, cols, shift, seed; uint16 weight[rows * cols], which the kernels find
//           `shift` elements past an aligned address
//   answer  int64 num_words; int32 offsets[tiles + 1]; uint32 words[num_words]
#include <cstdint>

#include "cuda/tiled_csl/pack.cuh"
#include "emulator/driver.h"
#include "emulator/offsets.h"

using namespace flashsparse::tiled_csl;
using namespace driver;

int main() {
  int64_t header[4];
  while (read_header(header)) {
    const int64_t rows = header[0], cols = header[1], shift = header[2];
    const unsigned seed = static_cast<unsigned>(header[3]);
    const int64_t tiles = tile_rows(rows) * tile_cols(cols);
    const auto storage = device_array<uint16_t>(shift + rows * cols);
    uint16_t* const weight = storage.get() + shift;
    read(weight, rows * cols);
    const auto lengths = device_array<int32_t>(tiles);
    const unsigned grid = static_cast<unsigned>(tiles);
    simt::launch(grid, kPackThreads, seed,
                 [&] { count_kernel(weight, rows, cols, lengths.get()); });
    const SummedOffsets summed = sum_offsets(lengths.get(), tiles, seed);
    const auto words = device_array<uint32_t>(summed.total);
    simt::launch(grid, kPackThreads, seed,
                 [&] { pack_kernel(weight, rows, cols, summed.offsets.get(), words.get()); });
    write(&summed.total, 1);
    write(summed.offsets.get(), tiles + 1);
    write(words.get(), summed.total);
  }
}
