// SPDX-License-Identifier: Apache-2.0
// Runs the unpack kernel over every case on stdin and writes the weights to stdout.
//   case    int64 rows, cols, num_words, seed; int32 offsets[tiles + 1]; uint32 words[num_words]
//   answer  uint16 weight[rows * cols]
#include <cstdint>

#include "cuda/tiled_csl_unpack.cuh"
#include "emulator/driver.h"

using namespace flashsparse::tiled_csl;
using namespace driver;

int main(int argc, char** argv) {
  const Counting counting(argc, argv);
  int64_t header[4];
  while (read_header(header)) {
    const auto [rows, cols, num_words, seed] = header;
    const int64_t tiles = tile_rows(rows) * tile_cols(cols);
    const auto offsets = device_array<int32_t>(tiles + 1);
    const auto words = device_array<uint32_t>(num_words);
    const auto weight = device_array<uint16_t>(rows * cols);
    read(offsets.get(), tiles + 1);
    read(words.get(), num_words);
    simt::launch(tiles, kUnpackThreads, seed, [&, rows = rows, cols = cols, num_words = num_words] {
      unpack_kernel(words.get(), num_words, offsets.get(), rows, cols, weight.get());
    });
    write(weight.get(), rows * cols);
  }
}
