// SPDX-License-Identifier: Apache-2.0
// Runs the pack kernels over every case on stdin and writes what they make to stdout.
//   pack_driver
//     case    int64 rows, cols, shift, seed; uint16 weight[rows * cols], which the kernels find
//             `shift` elements past an aligned place
//     answer  int64 num_words; int32 offsets[tiles + 1]; uint32 words[num_words]
//   pack_driver offsets
//     case    int64 tiles, seed; int32 words of each tile[tiles]
//     answer  int64 num_words; int32 offsets[tiles + 1]
#include <cstdint>

#include "cuda/tiled_csl/pack.cuh"
#include "emulator/driver.h"

namespace {

using namespace flashsparse::tiled_csl;
using namespace driver;

void sum_offsets(int32_t* offsets, int64_t tiles, int64_t* num_words, unsigned seed) {
  simt::launch(1, kOffsetThreads, seed, [=] { offsets_kernel(offsets, tiles, num_words); });
}

void pack_cases() {
  int64_t header[4];
  while (read_header(header)) {
    const int64_t rows = header[0], cols = header[1], shift = header[2];
    const unsigned seed = static_cast<unsigned>(header[3]);
    const int64_t tiles = tile_rows(rows) * tile_cols(cols);
    const auto storage = device_array<uint16_t>(shift + rows * cols);
    uint16_t* const weight = storage.get() + shift;
    read(weight, rows * cols);
    const auto offsets = device_array<int32_t>(tiles + 1);
    const auto num_words = device_array<int64_t>(1);
    const unsigned grid = static_cast<unsigned>(tiles);
    simt::launch(grid, kPackThreads, seed,
                 [&] { count_kernel(weight, rows, cols, offsets.get()); });
    sum_offsets(offsets.get(), tiles, num_words.get(), seed);
    const auto words = device_array<uint32_t>(num_words[0]);
    simt::launch(grid, kPackThreads, seed,
                 [&] { pack_kernel(weight, rows, cols, offsets.get(), words.get()); });
    write(num_words.get(), 1);
    write(offsets.get(), tiles + 1);
    write(words.get(), num_words[0]);
  }
}

void offset_cases() {
  int64_t header[2];
  while (read_header(header)) {
    const int64_t tiles = header[0];
    const auto offsets = device_array<int32_t>(tiles + 1);
    const auto num_words = device_array<int64_t>(1);
    read(offsets.get() + 1, tiles);
    sum_offsets(offsets.get(), tiles, num_words.get(), static_cast<unsigned>(header[1]));
    write(num_words.get(), 1);
    write(offsets.get(), tiles + 1);
  }
}

}  // namespace

int main(int argc, char**) { argc > 1 ? offset_cases() : pack_cases(); }
